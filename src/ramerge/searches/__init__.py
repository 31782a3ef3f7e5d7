"""`ramerge search`: finds the merge of some agents that scores best, and says how sure that is.

commands      `ramerge search`; the options of a score, and the score that they name, also for `soups/commands`
search        the function that users call: makes a space, objectives and a scorer from its arguments, also for soups
settings      `SearchSettings`: how to carry out a search, once for API, command and reference; checks of arguments

space         the space of a search: its axes, their points, how a point is written
spacefile     reads a space from `--vary` or YAML, with all problems by line; called by `search`
points        makes the recipe of a point; for `run`, `prompted` and `spacefile`

contest       the loop of every choice between merges: ask a strategy, merge, score, store; for `run`, `ranking`, soups
strategies    choose the next point: all of a grid, or the sum first; the registry of strategies, also for plug-ins
study         samplers of Optuna as strategies
run           a search: a contest of a space's points; then scores the best on other items; called by `search`
ranking       `ramerge.rank`: a contest of a few merges by prompts, for `recommend`
trials        trials of a contest, and their files
folder        the folder OUT of a search, also of a greedy soup: locked, with trials and the scores of agents
evidence      intervals, paired differences, when to give a point up, the front of several objectives; for `run`

functions     scorers that call a user's function, in a separate process or in this one
child         the program in that process; scores part by part, for `functions`
mass          a scorer by prompts: how likely a merge is to give the agents' right replies
own_replies   lets tied candidates reply themselves, to decide between them
repliers      the model in memory, or a server, which generates these replies
prompted      a search by prompts: what it gathers, its default space, and the order of points, for `search`

results       `SearchResult`: the content of `search.json`, which `ui/search` reads
text          a search as text for the terminal; its sentences and rows, for `page` and `ui/search`
page          a search as an HTML page
charts        its figures, for `page` and `ui/search`
"""
