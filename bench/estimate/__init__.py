"""Memory, work and time of a step, computed without the device."""
