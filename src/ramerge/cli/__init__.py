"""The command line.

start        the entry point of the process: handles signals, then imports and calls `main`
main         the group of commands, and the messages and exit codes for errors and signals
commands     one function for each command of the core, without logic; features have commands of their own
carry_out    the end of `merge`, `convert` and `soup`: plans, merges, and prints the result
options      options and groups of options, each declared once, for all commands; `Session`, a run of the command line
flags/       the arguments that name models and recipes: reads a document from them, and writes it as them
words        parses arguments: KEY=VALUE, values in YAML, `--vary`; for `flags` and commands
terminal     prints lines, warnings, errors and tables, for all commands
progress     shows progress on standard error: bars, lines or JSON
summary      short results: of a merge, for `carry_out`; of a sweep, and the merging methods, for `commands`
"""
