"""Tables that compare methods, from the rows of a bench.

Read in this order: statistics -> paper -> cells -> choices, table -> markdown, latex, page,
terminal -> files.
"""
