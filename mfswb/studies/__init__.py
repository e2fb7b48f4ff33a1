"""Studies: results that are measured directly instead of gathered from runs; one module a study."""
