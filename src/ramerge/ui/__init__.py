"""`ramerge ui`: a page in the browser, made with Gradio, that runs the commands which it shows.

commands, start, desk    from words to a `Desk`: roots, limits, and what runs
serve, guard             the server on this machine; who may ask for what
page                     the tabs around one recipe
agents, look, search, choose, run, compare, share   a tab each
ask                      in the tab Compare: a prompt for several models
roots, draft, controls   models below the roots, and the recipe as text and as controls
jobs                     the commands that run, each a process of its own
space                    the same page as a Space of the hub
views                    tables and figures as HTML
"""
