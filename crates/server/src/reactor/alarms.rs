//! Timers that services have set.

use super::EventTarget;
use crate::time::timers::Timer;

/// The identifier of a service's timer, which may have expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AlarmId {
    index: u32,
    serial: u32,
}

/// All alarms: nodes of the worker's timer wheel.
///
/// This is not a `slab::Slab`, which drops the value of an entry that is freed. The timer node of a cancelled
/// alarm stays linked in the wheel until its tick comes, so an entry must outlive its alarm.
#[derive(Debug, Default)]
pub(crate) struct Alarms {
    entries: Vec<AlarmEntry>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct AlarmEntry {
    serial: u32,
    alarm: Option<(EventTarget, u32)>,
    /// The timer node. It may still be in a list of the wheel from the previous use of this index, and then
    /// stays there.
    timer: Timer,
}

impl Alarms {
    pub(super) fn insert(&mut self, ticks: u32, to: EventTarget) -> AlarmId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(AlarmEntry::default());
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[index as usize];
        entry.serial = entry.serial.wrapping_add(1);
        entry.alarm = Some((to, ticks));
        AlarmId { index, serial: entry.serial }
    }

    pub(super) fn cancel(&mut self, id: AlarmId) {
        if self.get(id).is_some() {
            self.take(id.index);
        }
    }

    /// Returns the receiver of the event, and the number of ticks until it; `None` if the alarm has been
    /// cancelled.
    pub(crate) fn get(&self, id: AlarmId) -> Option<(EventTarget, u32)> {
        let entry = self.entries.get(id.index as usize)?;
        entry.alarm.filter(|_| entry.serial == id.serial)
    }

    /// Removes the alarm with this index, because it has expired. Returns its identifier and the receiver
    /// of its event.
    pub(crate) fn take(&mut self, index: u32) -> Option<(AlarmId, EventTarget)> {
        let entry = self.entries.get_mut(index as usize)?;
        entry.timer.disarm();
        let (to, _) = entry.alarm.take()?;
        self.free.push(index);
        Some((AlarmId { index, serial: entry.serial }, to))
    }

    /// Returns the timer node of the alarm with this index.
    pub(crate) fn timer_mut(&mut self, index: u32) -> Option<&mut Timer> {
        self.entries.get_mut(index as usize).map(|entry| &mut entry.timer)
    }
}

impl AlarmId {
    /// Returns the index: small, and reused for later alarms.
    pub(crate) fn index(self) -> u32 {
        self.index
    }
}
