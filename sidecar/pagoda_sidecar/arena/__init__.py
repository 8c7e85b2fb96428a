"""The RAM tier's file: `layout` is pure, `file` and `headers` touch the mapping, `slots` decides, `tier` ties them."""
