"""Compatibility with other libraries, which read a layer's weight and hold parameters in distributed wrappers."""
