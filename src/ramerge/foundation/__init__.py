"""What every room stands on, and what knows nothing of merging.

errors                        everything that is raised on purpose
text, jsontext, typedjson     what strangers wrote, bounded and fit to be shown
files, signals, store         files that appear whole, signals that wait, what is kept between runs
events, pace, screen          progress, and how it is shown
terminal, options, completion what commands share; `extras`: how they are installed
machine                       processors, memory, and limits that libraries do not bear
dtypes, yamltext              names of element types; values of a command line
process                       signals and standard streams before all else
version                       of this package
"""
