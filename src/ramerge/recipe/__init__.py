"""What to merge, and how: from YAML, flags or Python to a checked `Recipe`. Opens no checkpoint.

document     the text as plain values that remember where they stand
mergekit     recipes in mergekit's form, said in ours
model        the structure of a recipe
checks       what is legal beyond the structure: methods, parameters, names of agents
layers       what a layer is
"""
