"""Plans for tests: a few defaults, anything changed by name."""

from prifedsync.accounting import NoisySteps, PrivacyPlan


def plan_of(defaults, changed):
    """The defaults with the changes, each field given to the plan or to its noisy steps, whichever has it."""
    fields = defaults | changed
    own = {key: fields.pop(key) for key in ("rounds", "participation", "neighbours") if key in fields}
    return PrivacyPlan(mechanism=NoisySteps(**fields), **own)
