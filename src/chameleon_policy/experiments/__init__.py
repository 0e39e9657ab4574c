"""From nothing to scores: record demonstrations once, train, evaluate, write the results.

`pipeline` has the steps; the experiments are its configurations.

demo        one task and a memoryless twin, in minutes, on a page
reproduce   one policy by the recipe, compared with the published scores
bench       every method on every task, trained and scored alike
"""
