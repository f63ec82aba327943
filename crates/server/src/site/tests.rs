//! Paths to files: what is served, what is refused, and how soon a change is seen.
