//! Figures in SVG that are readable without colour: each series has its own mark and dashes, and its
//! name is beside its last point.

mod anchor;
mod appearance;
mod dark;
mod pen;
mod spread;

use self::{
    appearance::{Appearance, COLOURS, appearances},
    pen::{DrawResult, Root, dashed, mark},
    spread::Spread,
};
use super::panel::Panel;
use crate::{
    claims,
    experiment::{Experiment, PaperLine, RATE, Value},
    format,
    metric::{self, Metric},
    result::Outcome,
    statistics::Estimate,
};
use plotters::{
    coord::ranged1d::{DefaultFormatting, KeyPointHint, ValueFormatter},
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

const WIDTH: u32 = 860;
const HEIGHT: u32 = 470;
/// The width beside the plot for the sample of a line, and the smallest and the largest width for the
/// names.
const SAMPLE: i32 = 47;
const NAMES: std::ops::RangeInclusive<i32> = 120..=260;
/// The approximate width of a character of a name.
const CHARACTER_WIDTH: f64 = 7.8;
const TOP: i32 = 48;
const BOTTOM: i32 = 48;
const LEFT: i32 = 78;
const FONT: &str = "system-ui, 'DejaVu Sans', sans-serif";
/// The smallest distance between two names, in pixels.
const LINE: i32 = 19;
/// The distance by which neighbouring series are shifted sideways, so that equal points do not hide each
/// other.
const SHIFT: i32 = 3;

/// The opacity of the lines of a paper.
const PAPER: f64 = 0.5;
const GRID: RGBColor = RGBColor(225, 225, 225);
const GUIDE: RGBColor = RGBColor(150, 150, 150);
const TEXT: RGBColor = RGBColor(40, 40, 40);

/// The area between the axes, whose y axis is linear or logarithmic.
type Chart<'a, 'b, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Ticks, Y>>;

/// One line of a figure.
struct Series {
    name: String,
    /// The series' position in this figure, for the shift.
    index: usize,
    appearance: Appearance,
    /// The points: x in the coordinates of the axis, and the measured estimate.
    points: Vec<(f64, Estimate)>,
    /// The figures of the single blocks.
    blocks: Vec<(f64, f64)>,
    /// The ranges of the seconds within a window.
    spreads: Vec<Spread>,
    /// Points at which the server had no idle CPU.
    saturated: Vec<f64>,
}

/// Returns the positions of the values along x: the values (or their logarithms) if all are numbers,
/// otherwise equal distances.
fn places(panel: &Panel<'_>) -> Vec<f64> {
    let values = &panel.x.values;
    let numbers: Option<Vec<f64>> = values.iter().map(Value::number).collect();
    match numbers {
        Some(numbers) if panel.figure.log_x && numbers.iter().all(|&number| number > 0.0) => {
            numbers.into_iter().map(f64::log10).collect()
        }
        Some(numbers) if numbers.windows(2).all(|pair| pair[0] < pair[1]) => numbers,
        _ => (0..values.len()).map(|index| index as f64).collect(),
    }
}

/// What is drawn.
struct Drawing<'a> {
    outcome: &'a Outcome,
    panel: &'a Panel<'a>,
    places: Vec<f64>,
}

impl<'a> Drawing<'a> {
    fn of(outcome: &'a Outcome, panel: &'a Panel<'a>) -> Self {
        Self { outcome, panel, places: places(panel) }
    }
}

/// Draws a panel.
///
/// # Errors
/// Fails if the drawing library fails; it does not access the disk.
pub fn draw(outcome: &Outcome, panel: &Panel<'_>) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        Drawing::of(outcome, panel)
            .paint(&root)
            .map_err(|error| anyhow::anyhow!("figure {}: {error}", panel.id))?;
    }
    // A scalable picture, with a name for readers who cannot see it.
    let title = format::escape(&panel.figure.title);
    let class = dark::CLASS;
    let svg = svg.replacen(
        &format!("<svg width=\"{WIDTH}\" height=\"{HEIGHT}\""),
        &format!("<svg class=\"{class}\" role=\"img\" aria-label=\"{title}\" width=\"100%\""),
        1,
    );
    // The style is inside the root element, so that the file by itself has it, too.
    let head = svg.find('>').map_or(0, |end| end + 1);
    Ok(format!("{}\n{}{}", &svg[..head], dark::style(), &svg[head..]))
}

/// Returns the explanation of the bars beside the lines; `None` if there are no bars.
pub fn note(outcome: &Outcome, panel: &Panel<'_>) -> Option<&'static str> {
    note_of(&Drawing::of(outcome, panel).series())
}

fn note_of(series: &[Series]) -> Option<&'static str> {
    series.iter().any(|line| !line.spreads.is_empty()).then_some(spread::NOTE)
}

/// A line of a paper, its appearance, and its points in the units of the figure.
type DrawnPaperLine<'a> = (&'a PaperLine, Appearance, Vec<(f64, f64)>);

impl Drawing<'_> {
    /// Returns the source of the paper's own figures in the drawing; `None` if there are none.
    fn paper_note(&self) -> Option<String> {
        let anchors = anchor::of(self);
        let mut sources: Vec<&str> = anchors.iter().map(|anchor| anchor.source.as_str()).collect();
        let Experiment { claim, source, .. } = &self.outcome.experiment;
        let of_paper = claim.iter().find(|claim| claim.paper_key().is_some());
        let of_claims = of_paper.map_or(source, |claim| &claim.source);
        sources.extend(
            self.paper()
                .iter()
                .map(|(line, ..)| line.source.as_ref().unwrap_or(of_claims).as_str()),
        );
        sources.sort_unstable();
        sources.dedup();
        (!sources.is_empty()).then(|| format!("hollow: the paper's own ({})", sources.join(", ")))
    }

    fn series(&self) -> Vec<Series> {
        let Self { outcome, panel, places } = self;
        let mut all = Vec::new();
        let appearances = appearances(&outcome.variants);
        let looks = outcome.variants.iter().zip(appearances);
        let shown = looks.filter(|(variant, _)| panel.variants.contains(variant));
        // Zero has no logarithm, so it is not drawn; the table beside the figure shows it.
        let is_drawn = |y: f64| !panel.figure.log_y || y > 0.0;
        for (index, (variant, appearance)) in shown.enumerate() {
            let points: Vec<_> = panel
                .x
                .values
                .iter()
                .zip(places)
                .filter_map(|(value, &x)| {
                    let cell = outcome.cell(&variant.name, &panel.point(value))?;
                    Some((x, *cell.metrics.get(&panel.figure.y)?))
                })
                .filter(|(_, estimate)| is_drawn(estimate.value))
                .collect();
            if points.is_empty() {
                continue;
            }
            let (mut blocks, mut saturated) = (Vec::new(), Vec::new());
            for (value, &x) in panel.x.values.iter().zip(places) {
                let point = panel.point(value);
                let runs = || outcome.runs_at(&variant.name, &point);
                let values = runs().filter_map(|run| run.metric(&panel.figure.y));
                blocks.extend(values.filter(|&y| is_drawn(y)).map(|y| (x, y)));
                if panel.figure.y == claims::COST && claims::is_saturated(runs()) {
                    saturated.push(x);
                }
            }
            let name = variant.name.clone();
            let spreads = spread::of(self, &name);
            all.push(Series { name, index, appearance, points, blocks, spreads, saturated });
        }
        all
    }

    /// Returns the paper's own measurements between the first and the last value of this run, in the
    /// coordinates of the axes, with the appearance of the same variant.
    fn paper(&self) -> Vec<DrawnPaperLine<'_>> {
        let Self { outcome, panel, places } = self;
        if !panel.x.values.iter().all(|value| value.number().is_some()) {
            return Vec::new();
        }
        let appearances = appearances(&outcome.variants);
        let (first, last) = (places[0] - 1e-9, places[places.len() - 1] + 1e-9);
        let line = |line: &PaperLine| {
            let index = outcome.variants.iter().position(|v| v.name == line.variant)?;
            if !panel.shows(&line.variant) {
                return None;
            }
            let at = |x: f64| if panel.figure.log_x { x.log10() } else { x };
            let points: Vec<(f64, f64)> = line
                .points
                .iter()
                .map(|[x, y]| (at(*x), *y))
                .filter(|(x, y)| (first..=last).contains(x) && (!panel.figure.log_y || *y > 0.0))
                .collect();
            (points.len() > 1).then(|| (appearances[index], points))
        };
        let lines = panel.paper(outcome).into_iter();
        lines
            .filter_map(|it| line(it).map(|(appearance, points)| (it, appearance, points)))
            .collect()
    }

    fn paint(&self, root: &Root<'_>) -> DrawResult {
        let Self { outcome, panel, places } = self;
        let series = self.series();
        root.fill(&WHITE)?;
        let title = (FONT, 18).into_font().style(FontStyle::Bold).color(&TEXT);
        root.draw(&Text::new(panel.figure.title.clone(), (14, 10), title))?;
        let subtitle = Some(panel.subtitle(outcome)).filter(|text| !text.is_empty());
        let note = note_of(&series).map(str::to_owned);
        let subtitle: Vec<String> = subtitle.into_iter().chain(note).collect();
        let small = (FONT, 13).into_font().color(&TEXT);
        root.draw(&Text::new(subtitle.join("; "), (14, 31), small.clone()))?;
        if let Some(note) = self.paper_note() {
            let corner = (WIDTH as i32 - 8, HEIGHT as i32 - 6);
            root.draw(&Text::new(note, corner, small.pos(Pos::new(HPos::Right, VPos::Bottom))))?;
        }
        if series.is_empty() {
            let style = (FONT, 15).into_font().color(&TEXT);
            return root.draw(&Text::new("no run that counts", (LEFT, HEIGHT as i32 / 2), style));
        }
        let ends = self.ends();
        let low = ends.iter().copied().fold(f64::INFINITY, f64::min);
        let high = ends.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let span = (places[places.len() - 1] - places[0]).max(1e-9);
        let x = places[0] - 0.04 * span..places[places.len() - 1] + 0.04 * span;
        let x = Ticks { range: x, at: places.clone() };
        let area = root.margin(TOP as u32, 0, 0, WIDTH as i32 - self.edge(&series));
        let mut builder = ChartBuilder::on(&area);
        builder
            .x_label_area_size(BOTTOM)
            .y_label_area_size(LEFT)
            .margin_top(12)
            .margin_left(8)
            .margin_bottom(6);
        if panel.figure.log_y {
            let y = Decades { low: low / 1.25, high: high * 1.25 };
            self.lines(root, builder.build_cartesian_2d(x, y)?, &series)
        } else {
            let bottom = if low >= 0.0 { 0.0 } else { low * 1.08 };
            let top = if high > bottom { bottom + (high - bottom) * 1.08 } else { bottom + 1.0 };
            self.lines(root, builder.build_cartesian_2d(x, bottom..top)?, &series)
        }
    }

    /// All values that the y axis has to show: the parts of one figure have one scale.
    fn ends(&self) -> Vec<f64> {
        let panel = Panel { variants: &self.outcome.variants, ..self.panel.clone() };
        let whole = Drawing { panel: &panel, places: self.places.clone(), ..*self };
        let mut ends: Vec<f64> = Vec::new();
        for Series { points, blocks, spreads, .. } in whole.series() {
            let estimates = points.iter().flat_map(|(_, e)| [Some(e.value), e.low, e.high]);
            ends.extend(estimates.flatten());
            ends.extend(blocks.iter().map(|(_, y)| *y));
            ends.extend(spreads.iter().flat_map(|spread| [spread.least, spread.most]));
        }
        ends.extend(anchor::of(&whole).iter().map(|anchor| anchor.at.1));
        ends.extend(self.paper().into_iter().flat_map(|(.., line)| line).map(|(_, y)| y));
        ends.retain(|&y| !self.panel.figure.log_y || y > 0.0);
        ends
    }
}

/// The smallest distance between two ticks, as a share of the axis; with less their labels would
/// overlap.
const NEAREST: f64 = 0.085;

/// An axis whose ticks are the measured values, as far as there is room.
#[derive(Clone)]
struct Ticks {
    range: std::ops::Range<f64>,
    at: Vec<f64>,
}

impl Ranged for Ticks {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        let room = NEAREST * (self.range.end - self.range.start);
        let mut ticks: Vec<f64> = Vec::with_capacity(self.at.len());
        for &tick in &self.at {
            if ticks.last().is_none_or(|last| tick - last >= room) {
                ticks.push(tick);
            }
        }
        // The last value always has a tick, because all lines end there.
        if let (Some(tick), Some(&last)) = (ticks.last_mut(), self.at.last()) {
            *tick = last;
        }
        ticks
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.range.clone()
    }
}

/// A logarithmic axis with ticks at 1, 2 and 5 of each decade.
#[derive(Clone)]
struct Decades {
    low: f64,
    high: f64,
}

impl Ranged for Decades {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value.max(self.low) / self.low).ln() / (self.high / self.low).ln();
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        let steps: &[f64] = match decades {
            d if d < 1.0 => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0],
            d if d < 4.0 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        (first..=last)
            .flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)))
            .filter(|tick| (self.low..=self.high).contains(tick))
            .collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.low..self.high
    }
}

/// Draws the background of the lines: bars of the seconds within a window, and dots of the blocks.
fn behind<Y: Ranged<ValueType = f64>>(
    root: &Root<'_>,
    chart: &Chart<'_, '_, Y>,
    series: &[Series],
    shift: impl Fn(usize) -> i32,
) -> DrawResult {
    // Zero has no logarithm: such a bar continues to the lower edge.
    let floor = chart.y_range().start;
    for line in series {
        for Spread { x, least, most } in &line.spreads {
            let at = |y: f64| {
                let (x, y) = chart.backend_coord(&(*x, y.max(floor)));
                (x + shift(line.index), y)
            };
            spread::draw(root, [at(*most), at(*least)], line.appearance.colour())?;
        }
    }
    for line in series {
        let colour = line.appearance.colour().mix(0.35);
        for (x, y) in &line.blocks {
            let (x, y) = chart.backend_coord(&(*x, *y));
            root.draw(&Circle::new((x + shift(line.index), y), 2, colour.filled()))?;
        }
    }
    Ok(())
}

/// Draws a line with its marks and intervals; returns its end in pixels.
fn one(
    root: &Root<'_>,
    line: &Series,
    at: impl Fn(f64, f64) -> (i32, i32),
) -> DrawResult<(i32, i32)> {
    let colour = line.appearance.colour();
    let path: Vec<(i32, i32)> = line.points.iter().map(|(x, e)| at(*x, e.value)).collect();
    dashed(root, &path, line.appearance.dashes(), colour)?;
    for (x, estimate) in &line.points {
        if let (Some(low), Some(high)) = (estimate.low, estimate.high) {
            let (top, bottom) = (at(*x, high), at(*x, low));
            root.draw(&PathElement::new(vec![top, bottom], colour.stroke_width(1)))?;
            for (x, y) in [top, bottom] {
                root.draw(&PathElement::new(vec![(x - 4, y), (x + 4, y)], colour))?;
            }
        }
        mark(root, at(*x, estimate.value), line.appearance.mark, colour)?;
        if line.saturated.contains(x) {
            root.draw(&Circle::new(at(*x, estimate.value), 10, colour.stroke_width(1)))?;
        }
    }
    Ok(path[path.len() - 1])
}

impl Drawing<'_> {
    fn lines<Y: Ranged<ValueType = f64> + ValueFormatter<f64>>(
        &self,
        root: &Root<'_>,
        mut chart: Chart<'_, '_, Y>,
        series: &[Series],
    ) -> DrawResult {
        let Self { panel, places, .. } = self;
        let tick = |x: &f64| {
            let index = places.iter().position(|place| (place - x).abs() < 1e-9);
            index.map_or_else(String::new, |index| format::value(&panel.x.values[index]))
        };
        let y_tick = |y: &f64| {
            let text = format::number(*y);
            // Ticks are round numbers, so trailing zeros are removed.
            match text.contains('.') {
                true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
                false => text,
            }
        };
        let font = (FONT, 14).into_font().color(&TEXT);
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(TEXT)
            .label_style(font.clone())
            .axis_desc_style(font)
            .x_desc(panel.x.label.clone())
            .y_desc(metric::title(&panel.figure.y))
            .x_label_formatter(&tick)
            .y_label_formatter(&y_tick)
            .draw()?;
        let shift = |index: usize| (index as i32 - (series.len() as i32 - 1) / 2) * SHIFT;
        self.ceiling(root, &chart)?;
        for (_, appearance, points) in self.paper() {
            let colour = appearance.colour().mix(PAPER);
            let path: Vec<(i32, i32)> =
                points.iter().map(|point| chart.backend_coord(point)).collect();
            root.draw(&PathElement::new(path.clone(), colour.stroke_width(1)))?;
            for point in path {
                root.draw(&Circle::new(point, 3, colour.stroke_width(1)))?;
            }
        }
        behind(root, &chart, series, shift)?;
        let mut names = Vec::new();
        for line in series {
            let at = |x: f64, y: f64| {
                let (x, y) = chart.backend_coord(&(x, y));
                (x + shift(line.index), y)
            };
            names.push((line, line.appearance.colour(), one(root, line, at)?));
        }
        for anchor in anchor::of(self) {
            anchor::draw(root, chart.backend_coord(&anchor.at), anchor.appearance.colour())?;
        }
        self.beside(root, &mut names)
    }

    /// Draws the limit of figures along the rate: a server sends at most one reply per request, and uses at
    /// most one CPU.
    fn ceiling<Y: Ranged<ValueType = f64>>(
        &self,
        root: &Root<'_>,
        chart: &Chart<'_, '_, Y>,
    ) -> DrawResult {
        let panel = self.panel;
        let limit: fn(f64) -> f64 = match panel.figure.y.as_str() {
            y if y == Metric::Throughput.name() => |rate| rate,
            claims::COST => |rate| 1e6 / rate,
            _ => return Ok(()),
        };
        if panel.x.name != RATE {
            return Ok(());
        }
        let range = chart.y_range();
        let inside = |y: &f64| (range.start..=range.end).contains(y);
        let rates = panel.x.values.iter().filter_map(Value::number);
        let path: Vec<(i32, i32)> = self
            .places
            .iter()
            .zip(rates)
            .map(|(&x, rate)| (x, limit(rate)))
            .filter(|(_, y)| inside(y))
            .map(|point| chart.backend_coord(&point))
            .collect();
        dashed(root, &path, &[3, 5], GUIDE)
    }

    /// Returns the label beside a line: its name, and its end if that is not the end of the axis. It does
    /// not give the number of points, because a line lacks the rates that only other servers are offered.
    fn label(&self, line: &Series) -> String {
        let Self { panel, places, .. } = self;
        let end = line.points.last().map(|(x, _)| *x);
        let stop = places.iter().position(|&place| Some(place) == end);
        match stop.map(|index| &panel.x.values[index]) {
            Some(value) if end != places.last().copied() => {
                format!("{} (to {})", line.name, format::value(value))
            }
            _ => line.name.clone(),
        }
    }

    /// Returns the x coordinate, in pixels, where the plot ends and the names begin, such that all names
    /// have room.
    fn edge<'s>(&self, series: impl IntoIterator<Item = &'s Series>) -> i32 {
        let characters = |line: &Series| self.label(line).chars().count();
        let longest = series.into_iter().map(characters).max().unwrap_or(0);
        let names = (longest as f64 * CHARACTER_WIDTH).ceil() as i32;
        WIDTH as i32 - SAMPLE - names.clamp(*NAMES.start(), *NAMES.end())
    }

    /// Writes the names beside the last points, at a distance from each other so that none hides another.
    fn beside(&self, root: &Root<'_>, names: &mut [(&Series, RGBColor, (i32, i32))]) -> DrawResult {
        names.sort_by_key(|(_, _, (_, y))| *y);
        let mut rows: Vec<i32> = names.iter().map(|(_, _, (_, y))| *y).collect();
        let (first, last) = (TOP + 12 + LINE / 2, HEIGHT as i32 - BOTTOM - LINE / 2);
        // First move each name down, so that it does not overlap the one above; then up again, from the
        // bottom edge.
        for index in 0..rows.len() {
            let least = if index == 0 { first } else { rows[index - 1] + LINE };
            rows[index] = rows[index].max(least);
        }
        let mut most = last;
        for row in rows.iter_mut().rev() {
            *row = (*row).min(most);
            most = *row - LINE;
        }
        let edge = self.edge(names.iter().map(|(line, ..)| *line));
        for ((line, colour, end), row) in names.iter().zip(rows) {
            if line.points.last().map(|(x, _)| x) == self.places.last() {
                let leader = vec![(end.0 + 7, end.1), (edge, row)];
                root.draw(&PathElement::new(leader, colour.mix(0.45).stroke_width(1)))?;
            }
            let sample = [(edge + 4, row), (edge + 40, row)];
            dashed(root, &sample, line.appearance.dashes(), *colour)?;
            mark(root, (edge + 22, row), line.appearance.mark, *colour)?;
            let style = (FONT, 14).into_font().color(&TEXT).pos(Pos::new(HPos::Left, VPos::Center));
            root.draw(&Text::new(self.label(line), (edge + SAMPLE, row), style))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_do_not_write_over_each_other_and_the_last_is_there() {
        let ticks = |at: &[f64]| {
            let range = at[0]..at[at.len() - 1];
            Ticks { range, at: at.to_vec() }.key_points(100)
        };
        assert_eq!(ticks(&[0.0, 250.0, 500.0, 1000.0]), [0.0, 250.0, 500.0, 1000.0]);
        assert_eq!(
            ticks(&[0.0, 500.0, 510.0, 540.0, 600.0, 990.0, 1000.0]),
            [0.0, 500.0, 600.0, 1000.0]
        );
    }
}
