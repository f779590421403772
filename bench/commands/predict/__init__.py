"""``python -m bench predict``: single layers, one training step, or all arms of a user's model, without running any.

* :mod:`bench.commands.predict.command`: the command itself;
* :mod:`bench.commands.predict.layers`: ``shapes=``, least times of single layers in every precision;
* :mod:`bench.commands.predict.step`: ``method=``, one step on a device; with ``world_size=`` on several
  (:mod:`bench.commands.predict.ranks`);
* :mod:`bench.commands.predict.model`: ``model=`` without a method, every arm and several batches, on a page.
"""
