//! Timers that applications have set.

use super::EventTarget;
use crate::time::timers::Timer;

/// A timer of an application, or one that once was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AlarmId {
    index: u32,
    serial: u32,
}

/// All alarms: nodes of the worker's timer wheel.
#[derive(Debug, Default)]
pub(crate) struct Alarms {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Entry {
    serial: u32,
    alarm: Option<(EventTarget, u32)>,
    /// May hang in its list from the place's last use: it stays as it is.
    timer: Timer,
}

impl Alarms {
    pub(super) fn insert(&mut self, ticks: u32, to: EventTarget) -> AlarmId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry::default());
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

    /// The receiver of the event, and after how many ticks; `None` if it has been cancelled.
    pub(crate) fn get(&self, id: AlarmId) -> Option<(EventTarget, u32)> {
        let entry = self.entries.get(id.index as usize)?;
        entry.alarm.filter(|_| entry.serial == id.serial)
    }

    /// The alarm with this index has expired: the receiver of its event.
    pub(crate) fn take(&mut self, index: u32) -> Option<(AlarmId, EventTarget)> {
        let entry = self.entries.get_mut(index as usize)?;
        entry.timer.disarm();
        let (to, _) = entry.alarm.take()?;
        self.free.push(index);
        Some((AlarmId { index, serial: entry.serial }, to))
    }

    /// The wheel's part of the alarm of this number.
    pub(crate) fn timer_mut(&mut self, index: u32) -> Option<&mut Timer> {
        self.entries.get_mut(index as usize).map(|entry| &mut entry.timer)
    }
}

impl AlarmId {
    /// The number of its place: small, and used again.
    pub(crate) fn index(self) -> u32 {
        self.index
    }
}
