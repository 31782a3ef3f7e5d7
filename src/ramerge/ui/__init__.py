"""`ramerge ui`: a page in the browser, made with Gradio, that runs commands and shows their command lines.

commands     `ramerge ui`
space        the same page as a public Space of the hub
serve        the server on this machine, and the pages of reports that it sends
guard        controls access to the server: token, origin, size

page         all tabs around one recipe, in this order; called by `serve`
agents       the tab Agents: choice of base and agents, with their headers
look         the tab Look: `ramerge analyze`, live, and the advice of `recommend`
search       the upper part of the tab Choose: `ramerge search` by prompts, with its result; lines of prompts
choose       the tab Choose: method and parameters as controls, the recipe as YAML, and its plan
merge        the tab Merge: a list of merges; the job of a merge, for `share`; finished merges, for other tabs
compare      the tab Compare: scores of the demo; `ramerge eval`, and its tables
ask          the lower part of the tab Compare: a prompt for several models
share        the tab Share: recipe, card, report and upload of a finished merge; `ramerge handoff`, for a trainer

desk         what all tabs share: limits, plans, each visitor's jobs and folder; errors as text; HTML components;
             makes a `Desk` from arguments, for `commands`
jobs         commands, each run in its own process, and their queue, which `serve` and `space` close
roots        the files that the page may read and write: models, prompts and outputs in some folders
draft        the text of the recipe: reads and checks it, and changes models, keys or parameters
controls     a control for each parameter of a method, for `choose`
views        tables, figures, progress and command lines as HTML
"""
