"""Tables that compare methods, from the rows of a bench.

Read in this order: outcomes -> cells -> choices, methods -> rendering.
"""
