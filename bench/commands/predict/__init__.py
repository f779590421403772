"""``python -m bench predict``: single layers, one training step, or all arms of a user's model, without running any.

* :mod:`bench.commands.predict.command`: the command itself, and ``shapes=``, least times of single layers;
* :mod:`bench.commands.predict.step`: ``method=``, one step on a device; :mod:`bench.commands.predict.answer`, its text;
* :mod:`bench.commands.predict.model`: ``model=`` without a method, every arm and several batches, on a page.
"""
