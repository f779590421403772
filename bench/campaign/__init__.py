"""``python -m bench campaign``: the missing cells of all experiments, in order of value, inside a time budget.

For a GPU that is there for minutes at a time: borrowed, pre-emptible, without a network. A call runs what is missing,
stops inside its budget, and leaves one archive of records, which :mod:`bench.commands.merge` takes in; given that
archive, the next call goes on where this one was.

:mod:`bench.campaign.stages` has what is run and in which order, :mod:`bench.campaign.clock` what still fits,
:mod:`bench.campaign.archive` what is carried from one call to the next; :mod:`bench.campaign.run` does it.
"""
