"""Who may do what, and how each topic is treated: the policy files, and what reads them.

General layout, from the bytes upwards:

    files.py      a policy file: whole or refused, watched, replaced by rename, last good kept
    matching.py   the only matchers there are: anchored globs over topics and spaces
    rules.py      policy.csv: the grammar of its lines, reading and writing
    judge.py      casbin, and the checks without which it fails open
    rbac.py       decisions, their cache and their explanation
    tables.py     the tables of a TOML policy, and where each problem in them stands
    topics.py     topics.toml: the settings of each topic
    attention.py  attention.toml: what deserves processing now

Nothing is imported here, so that reading a packaged file does not load casbin.
"""
