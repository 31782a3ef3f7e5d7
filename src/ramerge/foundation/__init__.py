"""What every room stands on, and what knows nothing of merging.

text, jsontext, typedjson     what strangers wrote, bounded and fit to be shown
files, signals, store         files that appear whole, signals that wait, what is kept between runs
events, pace, screen          progress, and how it is shown
terminal, extras, limits      lines for people, how extras are installed, limits that libraries do not bear
machine                       processors and memory
version                       of this package
"""
