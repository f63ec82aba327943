//! The batching law: the cost of a request for a server that waits for events.
//!
//! CPU per request = c + S(N) × waits per request. `c` is the work that every request needs, and S(N) is
//! the cost of one wait while N connections are idle. Requests that are ready together share a wait.
//! Therefore the load and the number of requests that may be open determine how much a request pays for
//! idle connections.
//!
//! A wait returns a batch of B events. The cycle that handles it lasts T = S + ((c + g)/e) B. Here e is the
//! number of events of a request, and g is the CPU time that another process uses for a request on the
//! server's CPU, such as the generator in a guest with one CPU; it is 0 if the server has its CPU for itself.
//! During the cycle events arrive at the rate e λ, and they are the next batch; if none arrives, the server
//! waits for the first one. With Poisson arrivals B = x + exp(-x), where x = e λ T, and B is at most the number
//! of requests that may be open. A request then takes e/B waits.
//! This is the fluid limit of a queue with bulk service (N. T. J. Bailey, J. Royal Statistical Society B
//! 16, 1954; M. F. Neuts, Annals of Mathematical Statistics 38, 1967) whose server begins with one event if
//! the queue is empty.

pub mod diagram;
pub mod fit;

/// A measured cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The number of idle connections.
    pub idle: f64,
    /// The number of waits per request.
    pub waits: f64,
    /// The server's CPU time per request, in microseconds.
    pub cpu_us: f64,
}

/// The law with its constants, of one mechanism on one machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Law {
    /// The CPU time of a request beside its waits, in microseconds.
    pub c_us: f64,
    /// The CPU time that another process uses for each request on the server's CPU, in microseconds: the
    /// generator's where both share one CPU, otherwise 0. It lengthens the cycle and limits the rate, but the
    /// server's CPU time per request does not include it.
    pub beside_us: f64,
    /// The cost of a wait in microseconds, for each number of idle connections in ascending order.
    pub scans: Vec<(f64, f64)>,
    /// The share of the variance of the CPU time per request that the law explains.
    pub r_squared: f64,
}

/// The number of requests that may be open at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Open {
    /// At most this number.
    AtMost(f64),
    /// Any number.
    Unlimited,
}

/// The state of a server at a rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Operation {
    /// The number of waits per request.
    pub waits: f64,
    /// The CPU time per request, in microseconds.
    pub cpu_us: f64,
    /// The completed requests per second: the offered rate, or the best rate if that is lower.
    pub completed_rps: f64,
    /// The mean time from an event to the end of its handling, in microseconds; none beyond the best rate,
    /// where a queue grows for as long as the load lasts.
    pub turn_us: Option<f64>,
}

impl Law {
    /// Fits the law by least squares of relative errors, with the same `c` for all numbers of idle
    /// connections. Returns `None` if the points do not determine the law: the waits per request must
    /// differ for at least one number of idle connections.
    pub fn fit(points: &[Point]) -> Option<Self> {
        let mut levels: Vec<f64> = points.iter().map(|point| point.idle).collect();
        levels.sort_by(f64::total_cmp);
        levels.dedup();
        let weight = |point: &Point| 1.0 / point.cpu_us.powi(2);
        // S is eliminated from each level first, which leaves one equation for c.
        let (mut own, mut both) = (0.0, 0.0);
        let at = |level: f64| points.iter().filter(move |point| point.idle == level);
        for &level in &levels {
            let sum =
                |of: &dyn Fn(&Point) -> f64| at(level).map(|it| weight(it) * of(it)).sum::<f64>();
            let (ww, w, wy) = (
                sum(&|it| it.waits * it.waits),
                sum(&|it| it.waits),
                sum(&|it| it.waits * it.cpu_us),
            );
            if ww == 0.0 {
                return None;
            }
            for point in at(level) {
                let one = 1.0 - point.waits * w / ww;
                own += weight(point) * one * one;
                both += weight(point) * one * (point.cpu_us - point.waits * wy / ww);
            }
        }
        if own <= 1e-12 * points.iter().map(weight).sum::<f64>() {
            return None;
        }
        let c_us = (both / own).max(0.0);
        let scan = |&level: &f64| {
            let above: f64 = at(level).map(|it| weight(it) * it.waits * (it.cpu_us - c_us)).sum();
            let waits: f64 = at(level).map(|it| weight(it) * it.waits * it.waits).sum();
            (level, (above / waits).max(0.0))
        };
        let scans = levels.iter().map(scan).collect();
        let mut law = Self { c_us, beside_us: 0.0, scans, r_squared: 0.0 };
        let mean = points.iter().map(|point| point.cpu_us).sum::<f64>() / points.len() as f64;
        let total: f64 = points.iter().map(|point| (point.cpu_us - mean).powi(2)).sum();
        let error = |it: &Point| (it.cpu_us - law.cpu_us(it.idle, it.waits)).powi(2);
        let left: f64 = points.iter().map(error).sum();
        law.r_squared = if total > 0.0 { 1.0 - left / total } else { 1.0 };
        Some(law)
    }

    /// Returns the cost of a wait. Between the measured numbers of idle connections it is interpolated
    /// linearly, and beyond them it follows the last straight line.
    pub fn scan_us(&self, idle: f64) -> f64 {
        let above = self.scans.iter().position(|&(level, _)| level >= idle);
        let (from, to) = match (above, self.scans.len()) {
            (_, 0) => return 0.0,
            (_, 1) | (Some(0), _) => return self.scans[0].1,
            (Some(above), _) => (self.scans[above - 1], self.scans[above]),
            (None, count) => (self.scans[count - 2], self.scans[count - 1]),
        };
        let slope = (to.1 - from.1) / (to.0 - from.0);
        (from.1 + slope * (idle - from.0)).max(0.0)
    }

    /// Returns the CPU time per request, in microseconds, for a known number of waits per request.
    pub fn cpu_us(&self, idle: f64, waits: f64) -> f64 {
        self.c_us + self.scan_us(idle) * waits
    }

    /// Returns the best rate in requests per second. `events` is the number of waits of a request that
    /// shares none.
    pub fn best_rate(&self, idle: f64, events: f64, open: Open) -> f64 {
        1e6 / (self.cpu_us(idle, least_waits(events, open)) + self.beside_us)
    }

    /// Returns the best rate as a share of the best rate without idle connections.
    pub fn kept(&self, idle: f64, events: f64, open: Open) -> f64 {
        self.best_rate(idle, events, open) / self.best_rate(0.0, events, open)
    }

    /// Returns the state of the server at this rate.
    pub fn at(&self, idle: f64, events: f64, open: Open, rate_rps: f64) -> Operation {
        let scan_us = self.scan_us(idle);
        let event_us = (self.c_us + self.beside_us) / events.max(f64::MIN_POSITIVE);
        let events_per_us = events * rate_rps / 1e6;
        let most = match open {
            Open::AtMost(open) => open.max(1.0),
            Open::Unlimited => MAX_BATCH,
        };
        let cycle = |batch: f64| scan_us + event_us * batch;
        // `growth` is how much larger than `batch` the batch is that arrives while `batch` is handled. The
        // function is convex and not negative at one, so it has exactly one zero between one and any batch
        // where it is negative.
        let growth = |batch: f64| {
            let arrivals = events_per_us * cycle(batch);
            arrivals + (-arrivals).exp() - batch
        };
        let batch = if growth(most) >= 0.0 { most } else { zero(growth, 1.0, most) };
        let waits = events / batch;
        let cpu_us = self.cpu_us(idle, waits);
        let best_rps = self.best_rate(idle, events, open);
        let is_beyond = rate_rps > best_rps;
        // An event that arrives while the server works waits for half a cycle. In the next cycle, half of
        // the event's batch is handled before it.
        let utilization = (rate_rps / 1e6 * (cpu_us + self.beside_us)).min(1.0);
        let own_us = scan_us + event_us * (batch + 1.0) / 2.0;
        let turn_us = (!is_beyond).then(|| utilization * cycle(batch) / 2.0 + own_us);
        Operation { waits, cpu_us, completed_rps: rate_rps.min(best_rps), turn_us }
    }
}

/// The largest batch that is considered if the number of open requests has no limit.
const MAX_BATCH: f64 = 1e9;

/// Finds the zero of `function`, which is not negative at `low` and negative at `high`.
fn zero(function: impl Fn(f64) -> f64, mut low: f64, mut high: f64) -> f64 {
    const HALVINGS: u32 = 100;
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if function(middle) >= 0.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

/// Returns the fewest waits per request: all requests that may be open share one.
fn least_waits(events: f64, open: Open) -> f64 {
    match open {
        Open::AtMost(open) => events / open.max(1.0),
        Open::Unlimited => 0.0,
    }
}

/// Returns the median and the 95th percentile of relative errors; `None` without pairs.
pub fn errors(pairs: &[(f64, f64)]) -> Option<(f64, f64)> {
    let mut errors: Vec<f64> =
        pairs.iter().map(|(predicted, measured)| (predicted / measured - 1.0).abs()).collect();
    errors.sort_by(f64::total_cmp);
    let at =
        |share: f64| errors.get(((errors.len().checked_sub(1)?) as f64 * share).round() as usize);
    Some((*at(0.5)?, *at(0.95)?))
}

#[cfg(test)]
impl Law {
    /// Returns a law with these constants.
    pub(crate) fn made(c_us: f64, scans: &[(f64, f64)]) -> Self {
        Self { c_us, beside_us: 0.0, scans: scans.to_vec(), r_squared: 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEVELS: [(f64, f64); 3] = [(1.0, 21.0), (251.0, 409.0), (501.0, 703.0)];

    fn points(noise: f64) -> Vec<Point> {
        let mut sign = 1.0;
        let mut all = Vec::new();
        for (idle, scan) in LEVELS {
            for waits in [2.4, 1.6, 0.9, 0.3] {
                sign = -sign;
                let cpu_us = (224.0 + scan * waits) * (1.0 + sign * noise);
                all.push(Point { idle, waits, cpu_us });
            }
        }
        all
    }

    #[test]
    fn what_follows_the_law_gives_its_constants() {
        let law = Law::fit(&points(0.0)).unwrap();
        assert!((law.c_us - 224.0).abs() < 1e-6 && law.r_squared > 0.999_999, "{law:?}");
        for ((_, fitted), (_, scan)) in law.scans.iter().zip(LEVELS) {
            assert!((fitted - scan).abs() < 1e-6, "{law:?}");
        }
        let noisy = Law::fit(&points(0.02)).unwrap();
        assert!((noisy.c_us / 224.0 - 1.0).abs() < 0.05 && noisy.r_squared > 0.99, "{noisy:?}");
    }

    /// The positive control: data that do not follow the law are detected.
    #[test]
    fn what_does_not_follow_the_law_shows() {
        let mut points = points(0.0);
        for (index, point) in points.iter_mut().enumerate() {
            point.cpu_us = if index % 2 == 0 { 900.0 } else { 300.0 };
        }
        assert!(Law::fit(&points).unwrap().r_squared < 0.5);
        let same: Vec<Point> = points.iter().map(|it| Point { waits: 1.0, ..*it }).collect();
        assert_eq!(Law::fit(&same), None, "equal waits cannot separate c from S");
        assert_eq!(Law::fit(&[]), None);
    }

    #[test]
    fn between_levels_a_wait_is_on_a_line_and_beyond_on_the_last() {
        let law = Law::made(0.0, &[(0.0, 10.0), (100.0, 30.0)]);
        for (idle, scan) in [(0.0, 10.0), (50.0, 20.0), (100.0, 30.0), (200.0, 50.0)] {
            assert!((law.scan_us(idle) - scan).abs() < 1e-9, "{idle}");
        }
    }

    /// The results of each of the papers, from one set of constants.
    #[test]
    fn a_cap_decides_what_idle_connections_cost() {
        let law = Law::made(35.0, &[(0.0, 1.0), (10_000.0, 4_100.0)]);
        let kept = |open| law.kept(10_000.0, 2.0, open);
        assert!(kept(Open::Unlimited) > 0.999, "Provos: no cap, nothing lost at the limit");
        let gammo = kept(Open::AtMost(64.0));
        assert!((0.15..0.3).contains(&gammo), "Gammo: 64 at once, {gammo}");
        assert!(kept(Open::AtMost(512.0)) > gammo && kept(Open::AtMost(8.0)) < gammo);
        // Far below the limit a request pays for its own waits; near the limit requests share waits.
        let at = |rate| law.at(10_000.0, 2.0, Open::Unlimited, rate);
        assert!((at(10.0).waits - 2.0).abs() < 0.02);
        assert!(at(20_000.0).waits < 0.01 && at(20_000.0).turn_us.is_some());
        let capped = law.at(10_000.0, 2.0, Open::AtMost(64.0), 20_000.0);
        assert_eq!((capped.turn_us, capped.completed_rps < 7_000.0), (None, true));
        // A server that scans during all its idle CPU time uses the whole CPU.
        assert!((at(5_000.0).cpu_us - 200.0).abs() < 1e-6);
    }

    /// A generator on the server's CPU makes cycles longer. More events then share a wait, and the best rate is
    /// that of both.
    #[test]
    fn a_generator_on_the_same_cpu_shares_the_cycle() {
        let alone = Law::made(100.0, &[(0.0, 20.0)]);
        let shared = Law { beside_us: 300.0, ..alone.clone() };
        let at = |law: &Law| law.at(0.0, 2.0, Open::Unlimited, 2_000.0);
        assert!(at(&shared).waits < at(&alone).waits, "{:?} {:?}", at(&shared), at(&alone));
        assert!(at(&shared).cpu_us < at(&alone).cpu_us);
        assert!((shared.best_rate(0.0, 2.0, Open::Unlimited) - 2_500.0).abs() < 1e-6);
        assert!((alone.best_rate(0.0, 2.0, Open::Unlimited) - 10_000.0).abs() < 1e-6);
    }

    #[test]
    fn errors_are_relative() {
        assert_eq!(errors(&[]), None);
        let (median, high) = errors(&[(1.1, 1.0), (2.0, 2.0), (0.5, 1.0)]).unwrap();
        assert!((median - 0.1).abs() < 1e-9 && (high - 0.5).abs() < 1e-9);
    }
}
