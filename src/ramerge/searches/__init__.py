"""`ramerge search`: which merge of some agents scores best, and how sure that is.

commands               the command line
arguments, settings    arguments of public functions, checked; how a search is carried out
search, run            the public function; the whole search: ask, merge, score, report; then the best on other items
space                  what may vary: axes, the points between them, and how one is written
spacefile              its YAML form
points                 from a point of the space to a merged checkpoint
scores, evidence       what a score returns; intervals, paired differences, how far ahead the best is
functions, child       a score that is a Python function, in a process of its own with a time limit
children               processes that end when this one does
task_scores            a score that is tasks of `ramerge eval`
serving                the model server that is asked for it: started, checked, started again
prompted               a score that is the agreement with prompts
study                  Optuna: samplers, and the journal from which a search resumes
folder, results        the folder OUT; what `search.json` holds
text, page, charts     rows and sentences for the terminal and the page; the page and its figures
"""
