"""Rival training methods, one file each, all under the same protocol.

To add a rival, write one file ``baselines/<name>.py`` that offers three things:

* ``Settings``: a frozen dataclass of the rival's hyperparameters, every field with a default and checked when built;
* ``VARIANTS``: a tuple of variant names, the default first (``("",)`` when there is only one);
* ``build(settings, variant) -> TrainedArm``: the arm; subclass :class:`baselines._arm.TrainedArm` and override what
  differs.

This package imports nothing, and its modules no more than torch and :mod:`comera.protocol`, the types that all methods
share: heavy packages are loaded by the arm that needs them, when it needs them.
"""
