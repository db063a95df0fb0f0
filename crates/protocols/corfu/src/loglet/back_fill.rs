//! Back-fill (X7): a unit that was away fetches what it lacks of a sealed Loglet from the other units of its chain. What none of them has
//! is a hole; the unit records it as junk if the end that was installed says so.

use std::ops::Range;

use atoll_core::testing::hit;

use super::CorfuLoglet;
use crate::client::Stop;
use crate::projection::UnitId;

impl CorfuLoglet {
    /// Fetches what the unit of this node lacks of a range. What is below it was trimmed. Errors are left to the next request.
    pub(crate) async fn back_fill(&self, range: Range<u64>) -> Result<(), Stop> {
        let s = &self.0;
        let until = s.client.op_end();
        let own = s.client.env.node();
        let stretch = s.open.projection.active();
        for (index, chain) in stretch.chains.iter().enumerate() {
            let Some(unit) = chain.units.iter().copied().find(|unit| unit.0 == own) else { continue };
            s.client.seal_unit(&s.closed, unit).await?;
            if range.start > 0 {
                self.trim_unit(unit, stretch.address_from(index, range.start), until).await?;
            }
            let end = stretch.address_from(index, range.end);
            let has = self.written_on(unit, chain.base..end, until).await?;
            let sources: Vec<UnitId> = match self.end() {
                Some(end) => end.members(chain).filter(|other| *other != unit).collect(),
                None => chain.units.iter().copied().filter(|other| *other != unit).collect(),
            };
            for gap in has.missing_in(chain.base..end) {
                self.close(unit, &sources, gap.clone(), until).await?;
                let holes = super::lock(&s.state).installed.clone();
                for addr in gap {
                    let at = stretch.position_at(index, addr);
                    if holes.as_ref().is_some_and(|end| end.hole_at(at).is_some()) {
                        s.client.junk(&s.closed, unit, addr, addr + 1, until).await?;
                    }
                }
            }
        }
        Ok(())
    }

    async fn close(
        &self,
        unit: UnitId,
        sources: &[UnitId],
        gap: Range<u64>,
        until: atoll_core::Tick,
    ) -> Result<(), Stop> {
        let s = &self.0;
        for source in sources {
            let mut at = gap.start;
            while at < gap.end {
                let bytes = s.client.options.step_bytes;
                let Ok(found) =
                    s.client.look(&s.closed, *source, at..gap.end, bytes, s.client.round_end()).await
                else {
                    break;
                };
                for (piece, content) in found {
                    hit("corfu.back_fill");
                    s.client.copy(&s.closed, unit, &piece, content.as_ref(), until).await?;
                    at = at.max(piece.span().1);
                }
            }
        }
        Ok(())
    }
}
