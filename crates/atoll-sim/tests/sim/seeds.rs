use atoll_sim::seeds::{NoSeeds, Seeds};

fn seeds(text: &str) -> Seeds {
    text.parse().expect("these are seeds")
}

#[test]
fn seeds_are_ranges_and_numbers_with_commas() {
    let some = seeds("0..3,1000..1002,7");
    let all: Vec<u64> = (0..).map_while(|place| some.nth(place)).collect();
    assert_eq!(all, [0, 1, 2, 1000, 1001, 7]);
    assert_eq!((some.len(), some.to_string().as_str()), (6, "0..3,1000..1002,7..8"));
    assert_eq!(some.nth(u64::MAX), None);
    assert!(seeds("5..2").is_empty(), "a range that ends before it begins");
}

#[test]
fn a_share_is_a_part_of_each_range() {
    assert_eq!(seeds("0..50,1000..1029,4").share(10).to_string(), "0..5,1000..1002,4..4");
}

#[test]
fn what_is_no_seed_is_named() {
    for (text, part) in [("", ""), ("x", "x"), ("1..", "1.."), ("0..3,4..y", "4..y"), ("-1", "-1")] {
        assert_eq!(text.parse::<Seeds>(), Err(NoSeeds(part.to_owned())), "{text}");
    }
}
