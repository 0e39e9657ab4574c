"""`chameleon bench`: every method on every task, trained and scored alike; the table of the paper,
made anew.

Read in this order: plan -> rows -> processes -> board -> run. The tables are drawn by
`report/comparison`.
"""
