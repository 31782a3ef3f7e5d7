"""`ramerge ui`: a page in the browser, made with Gradio, that runs commands and shows them.

commands     `ramerge ui`
space        the same page as a Space of the hub, for everybody
serve        the server on this machine, and the pages of reports that it sends
guard        who may ask the server for what: token, origin, size

page         all tabs around one recipe, in this order; called by `serve`
agents       the tab Agents: base and agents are chosen, and their headers shown
look         the tab Look: `ramerge analyze`, live, and the advice of `recommend`
search       the upper part of the tab Choose: `ramerge search` by prompts, and its result; lines of prompts for `share`
choose       the tab Choose: method and parameters as controls, the recipe as YAML, and its plan
merge        the tab Merge: merges in a list; for `share` the job of a merge, for `compare` and `ask` what is finished
compare      the tab Compare: scores of the demo; `ramerge eval`, and its tables
ask          the lower part of the tab Compare: a prompt for several models
share        the tab Share: recipe, card, report and upload of a finished merge; `ramerge handoff`, for a trainer

desk         what all tabs share: limits, plans, each visitor's jobs and folder; errors as text, places for HTML;
             from words to a `Desk`, for `commands`
jobs         the commands that run, each a process of its own, and the queue of them, closed by `serve` and `space`
roots        which files the page may read and write: models, prompts and outputs below some folders
draft        the text of the recipe: read, checked, with other models, keys or parameters
controls     a control for each parameter of a method, for `choose`
views        tables, figures, progress and command lines as HTML
"""
