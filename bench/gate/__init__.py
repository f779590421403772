"""The regression gate: what ``make gate`` runs before a change lands.

It is pytest over this folder with the plugin pytest-benchmark; the project's own tests are elsewhere.
"""
