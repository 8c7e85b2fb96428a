"""Tests of what images are made of, as far as that needs no image."""
