//! A storage unit for one position (corfu.md §2).

/// What is at the position. There is one append in the model, so data needs no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Content {
    Data,
    Junk,
}

/// A request. All but a seal carry the epoch of the sender's projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Request {
    Write,
    Fill,
    Look,
    Seal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Answer {
    Done,
    /// The unit is in a higher epoch.
    Sealed,
    /// The unit is in a lower epoch.
    Ahead,
    /// The append is here already.
    Mine,
    /// Junk is here.
    Taken,
    Saw(Option<Content>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unit {
    pub epoch: u8,
    pub content: Option<Content>,
}

impl Unit {
    pub const fn new(epoch: u8) -> Self {
        Unit { epoch, content: None }
    }

    /// Serves a request. `serves_old` is a planted bug: the epoch before the sealed one is served, too.
    pub fn serve(&mut self, epoch: u8, request: Request, serves_old: bool) -> Answer {
        if request == Request::Seal {
            if epoch < self.epoch {
                return Answer::Sealed;
            }
            self.epoch = epoch;
            return Answer::Done;
        }
        let is_old = serves_old && epoch + 1 == self.epoch;
        if epoch < self.epoch && !is_old {
            return Answer::Sealed;
        }
        if epoch > self.epoch {
            return Answer::Ahead;
        }
        match (request, self.content) {
            (Request::Look, content) => Answer::Saw(content),
            (Request::Write, Some(Content::Data)) => Answer::Mine,
            (Request::Write, Some(Content::Junk)) => Answer::Taken,
            (Request::Write, None) => {
                self.content = Some(Content::Data);
                Answer::Done
            }
            // What is written already stays.
            (_, content) => {
                self.content = Some(content.unwrap_or(Content::Junk));
                Answer::Done
            }
        }
    }
}
