//! The drawings of an outcome.

use crate::{
    experiment::{Figure, Value},
    format,
    plan::{self, Dimension, Point},
    result::Outcome,
};

/// One drawing: a figure at one value of each axis that it is not drawn along.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel<'a> {
    /// File name.
    pub id: String,
    /// The figure that it belongs to.
    pub figure: &'a Figure,
    /// The axis along which it is drawn.
    pub x: &'a Dimension,
    /// The values of the other axes.
    pub at: Point,
}

impl Panel<'_> {
    /// What the other axes stand at, when there is a choice: `idle 8,000`.
    pub fn subtitle(&self, outcome: &Outcome) -> String {
        let parts: Vec<String> = self
            .at
            .iter()
            .filter_map(|(name, value)| {
                let dimension = outcome.dimensions.iter().find(|d| d.name == *name)?;
                let value = format::value(value);
                Some(format!("{}: {value}", dimension.label))
            })
            .collect();
        parts.join(", ")
    }

    /// The point at `x`.
    pub fn point(&self, x: &Value) -> Point {
        let mut point = self.at.clone();
        point.insert(self.x.name.clone(), x.clone());
        point
    }
}

/// All drawings of an outcome, in the order of the file.
pub fn panels(outcome: &Outcome) -> Vec<Panel<'_>> {
    let mut panels = Vec::new();
    for figure in &outcome.experiment.figure {
        let Some(x) = outcome.dimensions.iter().find(|d| d.name == figure.x) else { continue };
        let others: Vec<Dimension> = outcome
            .dimensions
            .iter()
            .filter(|dimension| dimension.name != figure.x)
            .map(|dimension| {
                let chosen = figure.at.get(&dimension.name);
                let chosen = chosen.and_then(|select| select.among(&dimension.values));
                let values = chosen.map_or_else(|| dimension.values.clone(), |v| vec![v.clone()]);
                Dimension { values, ..dimension.clone() }
            })
            .collect();
        let points = plan::points(&others);
        let several = points.len() > 1;
        for (index, at) in points.into_iter().enumerate() {
            let id =
                if several { format!("{}-{}", figure.id, index + 1) } else { figure.id.clone() };
            panels.push(Panel { id, figure, x, at });
        }
    }
    panels
}
