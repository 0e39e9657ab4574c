"""`chameleon bench`: every method on every task, trained and scored alike: the table of the paper.

Read in this order: jobs -> rows -> processes -> schedule, board. The tables are drawn by
`report/comparison`.
"""
