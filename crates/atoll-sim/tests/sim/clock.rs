use atoll_sim::rng::Rng;
use atoll_sim::world::clock::Clock;

#[test]
fn a_deadline_is_due_when_its_moment_comes_and_not_before() {
    let mut rng = Rng::new(5);
    for _ in 0..1000 {
        let clock = Clock::skewed(&mut rng, 100);
        let tick = clock.tick(rng.below(1 << 45)).after(std::time::Duration::from_nanos(rng.below(1 << 40)));
        let at = clock.when(tick);
        assert!(clock.tick(at) >= tick);
        assert!(at == 0 || clock.tick(at - 1) < tick);
    }
}
