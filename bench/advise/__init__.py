"""``python -m bench advise``: does structured training pay for a model of the user's own?

The path of the data, a module each:

* :mod:`bench.advise.question`: the words of the command become a :class:`~bench.advise.question.Question`;
* :mod:`bench.advise.model`: the configuration becomes a model with its task's head, of any number of blocks;
* :mod:`bench.advise.arms`: the ways to train it that are compared;
* :mod:`bench.advise.moments`: one step of a short model is traced, and its memory read off moment by moment;
* :mod:`bench.advise.linear`: two short traces become the prediction of the whole model, and two batches that of any;
* :mod:`bench.advise.evidence`: the measured loss gaps, from the committed records;
* :mod:`bench.advise.answer`: a row per arm, predicted side by side;
* :mod:`bench.advise.rule`: the one place that decides what the sentence on top recommends;
* :mod:`bench.advise.table`: the answer as text, JSON and points of the explorer's page;
* :mod:`bench.advise.measure`: one block of the true width, run and timed on this machine;
* :mod:`bench.advise.command`: the command itself.
"""
