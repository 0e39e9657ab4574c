"""Write every table of the documents from `docs/results/`, so that no number is typed by hand.

    python -m benchmarks.tables      (or: make tables)

A table stands below its marker, `<!-- table: half-lives -->`. `layout` has the machinery; `scores`,
`memory`, `speed` and `model` have one function for each table; `__main__` lists them all.
"""
