//! Timers that applications have set.

use super::To;
use crate::time::timers::Timer;

/// A timer of an application, or one that once was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AlarmId {
    index: u32,
    serial: u32,
}

/// All alarms: nodes of the worker's timer wheel.
#[derive(Debug, Default)]
pub(crate) struct Alarms {
    places: Vec<Place>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Place {
    serial: u32,
    alarm: Option<(To, u32)>,
    /// May hang in its list from the place's last use: it stays as it is.
    timer: Timer,
}

impl Alarms {
    pub(super) fn insert(&mut self, ticks: u32, to: To) -> AlarmId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        place.serial = place.serial.wrapping_add(1);
        place.alarm = Some((to, ticks));
        AlarmId { index, serial: place.serial }
    }

    pub(super) fn cancel(&mut self, id: AlarmId) {
        if self.get(id).is_some() {
            self.take(id.index);
        }
    }

    /// Who is told, and after how many ticks; if it has not been cancelled.
    pub(crate) fn get(&self, id: AlarmId) -> Option<(To, u32)> {
        let place = self.places.get(id.index as usize)?;
        place.alarm.filter(|_| place.serial == id.serial)
    }

    /// The alarm of this number has its time: who is told.
    pub(crate) fn take(&mut self, index: u32) -> Option<(AlarmId, To)> {
        let place = self.places.get_mut(index as usize)?;
        place.timer.disarm();
        let (to, _) = place.alarm.take()?;
        self.free.push(index);
        Some((AlarmId { index, serial: place.serial }, to))
    }

    /// The wheel's part of the alarm of this number.
    pub(crate) fn timer_mut(&mut self, index: u32) -> Option<&mut Timer> {
        self.places.get_mut(index as usize).map(|place| &mut place.timer)
    }
}

impl AlarmId {
    /// The number of its place: small, and used again.
    pub(crate) fn index(self) -> u32 {
        self.index
    }
}
