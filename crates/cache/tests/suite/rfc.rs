//! The cache as a client and an origin see it, by RFC section.

mod collapsing;
mod conditions;
mod freshness;
mod invalidation;
mod parts;
mod stale;
mod storing;
mod validation;
