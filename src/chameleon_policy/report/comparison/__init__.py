"""Tables that compare methods, from the rows of a bench.

Read in this order: statistics -> paper -> table -> markdown, latex, page, terminal -> files.
"""
