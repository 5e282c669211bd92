"""Attention: what a gate knows, what it decided, why, and what another policy would have decided.

General layout. The bus knows `keeper`, which asks the gate on behalf of the groups, and `journal`, in which the
keeper writes down what was decided. The default gate is `salience`, made of `scoring` (pure), `load`, `habits` and
`focus` (what it learns as it goes). Whoever looks back uses `history`, which reads the journals, and `inspector`,
which explains single decisions and tries other policies (`what_if`) on the recorded past.

Nothing is imported here: the bus needs only the first two, and must not depend on any concrete filter.
"""
