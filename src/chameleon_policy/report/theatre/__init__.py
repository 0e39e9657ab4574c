"""The memory theatre: episodes of a policy, with what it recalled and believed at every step, on
one page.

Read in this order: episode (what is shown) -> encoding (as text that a page can carry) -> page (the
page).
"""
