//! Which courses each block has.

use super::*;
use std::ops::Range;

/// The courses of all blocks: the cells that are measured on one server process.
pub(super) struct Blocks<'c> {
    /// Each course, and whether a claim reads one of its cells.
    courses: Vec<(&'c [Cell], bool)>,
    /// The number of the first blocks, which have all courses. The others leave out those that no claim reads.
    complete: u32,
    seed: u64,
}

impl<'c> Blocks<'c> {
    pub(super) fn of(session: &Session<'_>, courses: Vec<&'c [Cell]>) -> Self {
        let figure_blocks = session.settings.experiment.budget.figure_blocks;
        // Without this limit every block has all courses, so nothing has to be known about the claims.
        let is_read = |course: &[Cell]| {
            figure_blocks.is_none()
                || course.iter().any(|cell| claims::is_read(&session.outcome, cell))
        };
        Self {
            courses: courses.into_iter().map(|course| (course, is_read(course))).collect(),
            complete: figure_blocks.unwrap_or(0),
            seed: session.settings.seed,
        }
    }

    /// Returns the courses of `block` in their order.
    pub(super) fn courses(&self, block: u32) -> Vec<&'c [Cell]> {
        // The order of all courses is drawn, so that the orders of two blocks mirror each other even if one of
        // the blocks leaves courses out.
        let order = plan::block_order(self.courses.len(), block, self.seed);
        let courses = order.into_iter().map(|index| self.courses[index]);
        let here = courses.filter(|(_, is_read)| *is_read || block < self.complete);
        here.map(|(course, _)| course).collect()
    }

    /// Returns the number of courses of these blocks together.
    pub(super) fn count(&self, blocks: Range<u32>) -> usize {
        blocks.map(|block| self.courses(block).len()).sum()
    }

    /// Returns a note for the result if `block` leaves courses out.
    pub(super) fn note(&self, block: u32) -> Option<String> {
        let first = match self.complete {
            1 => "block".to_owned(),
            many => format!("{many} blocks"),
        };
        (self.courses(block).len() < self.courses.len()).then(|| {
            format!("Cells that no claim reads were measured in the first {first} only, for the figures.")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_blocks_leave_out_what_no_claim_reads_and_keep_the_order() {
        let cell = |number: u32| Cell { variant: number.to_string(), point: Point::new() };
        let cells: Vec<Cell> = (0..8).map(cell).collect();
        let is_read = |course: &[Cell]| course[0] == cells[1] || course[0] == cells[6];
        let courses = cells.chunks(1).map(|course| (course, is_read(course))).collect();
        let blocks = Blocks { courses, complete: 1, seed: 1 };
        assert_eq!((blocks.courses(0).len(), blocks.note(0)), (8, None));
        let mut mirrored = blocks.courses(0);
        mirrored.retain(|&course| is_read(course));
        mirrored.reverse();
        assert_eq!((blocks.courses(1).len(), blocks.courses(1)), (2, mirrored));
        assert_eq!((blocks.count(0..3), blocks.count(1..3)), (12, 4));
        let note =
            "Cells that no claim reads were measured in the first block only, for the figures.";
        assert_eq!(blocks.note(1).as_deref(), Some(note));
    }
}
