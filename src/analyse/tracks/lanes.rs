//! Slices that overlap without nesting go to several tracks of one name: what opens last on a track must
//! end first, in every format.
#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::io;

use crate::analyse::tracks::{GroupId, Parent, Sink, Slice, Track, TrackId};
use crate::units::Nanos;

/// A recording may claim that everything happened at once.
pub const MOST: usize = 64;

/// Hands out tracks and their numbers.
pub(super) struct Tracks<'s> {
    sink: &'s mut dyn Sink,
    next_track: u32,
    next_group: u32,
    left_out: u64,
}

impl<'s> Tracks<'s> {
    pub(super) fn new(sink: &'s mut dyn Sink) -> Self {
        Tracks {
            sink,
            next_track: 0,
            next_group: 0,
            left_out: 0,
        }
    }

    pub(super) fn makes_states(&self) -> bool {
        self.sink.makes_states()
    }

    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }

    pub(super) fn group(&mut self, name: &str) -> io::Result<Parent> {
        let id = GroupId(self.next_group);
        self.next_group += 1;
        self.sink.group(id, name)?;
        Ok(Parent::Group(id))
    }

    /// Ends all rows: their numbers are not used again.
    pub(super) fn end(&mut self) -> io::Result<()> {
        self.sink.end_tracks()
    }

    fn track(&mut self, row: &Row<'_>) -> io::Result<TrackId> {
        let id = TrackId(self.next_track);
        self.next_track += 1;
        self.sink.track(&Track {
            id,
            parent: row.parent,
            name: Cow::Borrowed(&row.name),
            rank: row.rank,
            lane: u32::try_from(row.lanes.len()).unwrap_or(u32::MAX),
        })?;
        Ok(id)
    }
}

#[derive(Debug)]
struct Lane {
    id: TrackId,
    /// Ends of the slices that are open.
    open: Vec<Nanos>,
}

/// What is one row to the reader: the tracks of one name.
#[derive(Debug)]
pub(super) struct Row<'a> {
    parent: Parent,
    name: Cow<'a, str>,
    rank: u32,
    /// Slices within a slice are shown in it, as calls are; else below it.
    nests: bool,
    lanes: Vec<Lane>,
}

impl<'a> Row<'a> {
    /// For slices that are not part of one another.
    pub(super) fn flat(parent: Parent, name: impl Into<Cow<'a, str>>, rank: u32) -> Self {
        Row {
            parent,
            name: name.into(),
            rank,
            nests: false,
            lanes: Vec::new(),
        }
    }

    /// For slices that are inside of others.
    pub(super) fn nested(parent: Parent, name: impl Into<Cow<'a, str>>, rank: u32) -> Self {
        Row {
            nests: true,
            ..Row::flat(parent, name, rank)
        }
    }

    /// Slices come by start, the longer first. The track of the first one is made when it comes.
    /// False: there was no place for it.
    pub(super) fn slice(&mut self, tracks: &mut Tracks<'_>, slice: &Slice<'_>) -> io::Result<bool> {
        let place = self.place(tracks, slice)?;
        if let Some(id) = place {
            tracks.sink.slice(id, slice)?;
        }
        Ok(place.is_some())
    }

    /// Instants come among the slices, by time.
    pub(super) fn instant(&mut self, tracks: &mut Tracks<'_>, slice: &Slice<'_>) -> io::Result<()> {
        match self.place(tracks, slice)? {
            Some(id) => tracks.sink.instant(id, slice),
            None => Ok(()),
        }
    }

    fn place(&mut self, tracks: &mut Tracks<'_>, slice: &Slice<'_>) -> io::Result<Option<TrackId>> {
        let nests = self.nests;
        let fits = |lane: &mut Lane| {
            while lane.open.last().is_some_and(|&end| end <= slice.start) {
                lane.open.pop();
            }
            match lane.open.last() {
                None => true,
                Some(&end) => nests && slice.end <= end,
            }
        };
        let lane = match self.lanes.iter_mut().position(fits) {
            Some(lane) => lane,
            None if self.lanes.len() >= MOST => {
                tracks.left_out += 1;
                return Ok(None);
            }
            None => {
                let id = tracks.track(self)?;
                self.lanes.push(Lane {
                    id,
                    open: Vec::new(),
                });
                self.lanes.len() - 1
            }
        };
        let lane = &mut self.lanes[lane];
        lane.open.push(slice.end);
        Ok(Some(lane.id))
    }
}
