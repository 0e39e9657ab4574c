"""From nothing to scores: record demonstrations once, train, evaluate on held-out episodes, write
what came out.

demo        one task and a memoryless twin, in minutes, on a page
reproduce   one policy by the recipe, beside the published scores
bench       every method on every task, trained and scored alike
"""
