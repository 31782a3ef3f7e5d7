"""`ramerge search`: which merge of some agents scores best, and how sure that is.

commands      `ramerge search`; the options of a score and what they name, which `soups/commands` uses, too
search        the function that users call: from words and values to a space, objectives and a scorer, also for soups
settings      `SearchSettings`: how a search is carried out, once for API, command and reference; checks of arguments

space         what may vary: axes, the points between them, how a point is written
spacefile     a space from `--vary` or YAML, with all problems by line; called by `search`
points        from a point to its recipe and its merge; for `run`, `prompted` and `spacefile`

contest       the loop of every choice between merges: ask a strategy, merge, score, keep; for `run`, `ranking`, soups
strategies    which point comes next: all of a grid, or the sum first; the registry of strategies, for plug-ins, too
study         samplers of Optuna as strategies
run           a search: a contest of the points of a space; then the best point on other items; called by `search`
ranking       `ramerge.rank`: a contest of a few merges by prompts, for `recommend`
trials        trials of a contest, and the files that keep them
folder        the folder OUT of a search, also of a greedy soup: locked, with trials and the scores of agents
evidence      intervals, paired differences, when to give a point up, the front of several objectives; for `run`

functions     scorers that call a user's function, in a process of its own or in this one
child         the program in that process; scores part by part, for `functions`
mass          a scorer by prompts: how likely a merge is to give the agents' right replies
own_replies   replies of tied candidates themselves, which decide between them
repliers      the model in memory, or a server, which gives these replies
prompted      a search by prompts: what is gathered, its usual space, and the order of points, for `search`

results       `SearchResult`: the content of `search.json`, which `ui/search` reads
text          a search as lines for the terminal; its sentences and rows, for `page` and `ui/search`
page          a search as an HTML page
charts        its figures, for `page` and `ui/search`
"""
