"""``python -m bench predict``: single layers, or one training step, without running any.

* :mod:`bench.commands.predict.command`: the command itself, and ``shapes=``, least times of single layers;
* :mod:`bench.commands.predict.step`: ``method=``, one step on a device; :mod:`bench.commands.predict.answer`, its text;
"""
