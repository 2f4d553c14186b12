use super::*;

fn range(pv: &str, start: u64, length: u64, volume: &str) -> UsedRange {
    UsedRange {
        pv: pv.to_owned(),
        start,
        length,
        volume: volume.to_owned(),
        parent: None,
        attr: "-wi-ao----".parse().unwrap(),
        segment_type: "linear".to_owned(),
        moved_from: None,
        disk_start: 1 << 20,
    }
}

fn part(pv: &str, start: u64, length: u64, volume: &str, parent: &str) -> UsedRange {
    let attr = "iwi-aor---".parse().unwrap();
    UsedRange { parent: Some(parent.to_owned()), attr, ..range(pv, start, length, volume) }
}

fn striped(pv: &str, start: u64, length: u64, volume: &str) -> UsedRange {
    UsedRange { segment_type: "striped".to_owned(), ..range(pv, start, length, volume) }
}

fn targets(free: &[(&str, u64)]) -> Vec<Target> {
    free.iter().map(|(uuid, free)| Target { uuid: (*uuid).to_owned(), free: *free }).collect()
}

/// Moves all that is on disk `a`, and returns the pieces with their targets.
fn moves(ranges: &[UsedRange], free: &[(&str, u64)], most: u64) -> Vec<(String, u64, u64, String)> {
    let (mut ranges, mut targets, mut moved) = (ranges.to_vec(), targets(free), Vec::new());
    while let Some(piece) = next_piece(&ranges, "a", &targets, most).unwrap() {
        move_piece(&mut ranges, "a", &mut targets, &piece);
        moved.push((piece.volume, piece.start, piece.length, piece.target.unwrap()));
    }
    assert!(ranges.iter().all(|range| range.pv != "a"));
    moved
}

fn owned(volume: &str, start: u64, length: u64, target: &str) -> (String, u64, u64, String) {
    (volume.to_owned(), start, length, target.to_owned())
}

#[test]
fn relocation_moves_pieces_to_the_disk_that_fits_the_volume() {
    let ranges = [range("a", 0, 10, "v"), range("b", 0, 5, "other")];
    assert_eq!(
        moves(&ranges, &[("b", 9), ("c", 12)], 4),
        [owned("v", 0, 4, "c"), owned("v", 4, 4, "c"), owned("v", 8, 2, "c")]
    );
}

#[test]
fn a_volume_that_fits_on_no_disk_is_split() {
    assert_eq!(
        moves(&[range("a", 3, 10, "v")], &[("b", 6), ("c", 7)], 4),
        [owned("v", 3, 4, "c"), owned("v", 7, 4, "b"), owned("v", 11, 2, "c")]
    );
}

#[test]
fn missing_free_space_is_counted() {
    let ranges = [range("a", 0, 10, "v"), range("a", 20, 5, "w")];
    assert_eq!(check_space(&ranges, &["a"], &targets(&[("b", 6), ("c", 7)])), Err(Obstacle::NoSpace { lacking: 2 }));
    assert_eq!(check_space(&ranges, &["a"], &targets(&[("b", 6), ("c", 9)])), Ok(()));
    assert_eq!(check_space(&[], &["a"], &[]), Ok(()));
}

#[test]
fn two_leaving_disks_need_free_space_for_both() {
    let ranges = [range("a", 0, 10, "v"), range("b", 0, 10, "w")];
    assert_eq!(check_space(&ranges, &["a", "b"], &targets(&[("c", 20)])), Ok(()));
    assert_eq!(check_space(&ranges, &["a", "b"], &targets(&[("c", 19)])), Err(Obstacle::NoSpace { lacking: 1 }));
}

fn mirror() -> Vec<UsedRange> {
    vec![
        part("a", 0, 1, "m_rmeta_0", "m"),
        part("a", 1, 10, "m_rimage_0", "m"),
        part("b", 0, 1, "m_rmeta_1", "m"),
        part("b", 1, 10, "m_rimage_1", "m"),
    ]
}

#[test]
fn relocation_keeps_images_of_a_mirror_on_different_disks() {
    assert_eq!(
        moves(&mirror(), &[("b", 100), ("c", 11)], 100),
        [owned("m_rimage_0", 1, 10, "c"), owned("m_rmeta_0", 0, 1, "c")]
    );
    let lacking = Obstacle::Apart { volume: "m_rimage_0".to_owned(), lacking: 10 };
    assert_eq!(check_space(&mirror(), &["a"], &targets(&[("b", 100)])), Err(lacking));
}

#[test]
fn what_has_the_fewest_places_goes_first() {
    let mut ranges = vec![range("a", 50, 20, "linear")];
    ranges.extend(mirror());
    // The image can go to c alone, and the linear one must not be there first
    assert_eq!(check_space(&ranges, &["a"], &targets(&[("b", 20), ("c", 11)])), Ok(()));
    assert_eq!(next_piece(&ranges, "a", &targets(&[("b", 20), ("c", 11)]), 9).unwrap().unwrap().volume, "m_rimage_0");
}

#[test]
fn stripes_stay_on_disks_of_their_own() {
    let ranges = [striped("a", 0, 5, "s"), striped("b", 0, 5, "s")];
    assert_eq!(moves(&ranges, &[("b", 100), ("c", 5)], 100), [owned("s", 0, 5, "c")]);
    let lacking = Obstacle::Apart { volume: "s".to_owned(), lacking: 5 };
    assert_eq!(check_space(&ranges, &["a"], &targets(&[("b", 100)])), Err(lacking));
}

#[test]
fn thin_pools_and_their_spare_can_be_moved() {
    let pool = |volume| part("a", 0, 5, volume, "pool");
    let spare = UsedRange { attr: "ewi-------".parse().unwrap(), ..range("a", 20, 1, "lvol0_pmspare") };
    for ranges in [vec![pool("pool_tdata")], vec![pool("pool_tmeta")], vec![spare]] {
        assert_eq!(check_space(&ranges, &["a"], &targets(&[("b", 100)])), Ok(()), "{ranges:?}");
    }
}

#[test]
fn what_was_never_proven_to_be_movable_is_refused_by_name() {
    let of = |attr: &str, range: UsedRange| UsedRange { attr: attr.parse().unwrap(), ..range };
    let mut both_images = mirror();
    both_images[2].pv = "a".to_owned();
    for ranges in [
        vec![of("swi-a-s---", range("a", 0, 5, "cow"))],
        vec![of("owi-a-s---", range("a", 0, 5, "origin"))],
        vec![of("-wc-a-----", range("a", 0, 5, "contiguous"))],
        vec![of("-wC-a-----", range("a", 0, 5, "contiguous"))],
        vec![part("a", 0, 5, "pool_cdata", "pool")],
        vec![part("a", 0, 5, "m_mimage_0", "m")],
        vec![part("a", 0, 5, "m_rimage_0_iorig", "m_rimage_0")],
        vec![UsedRange { segment_type: "vdo".to_owned(), ..range("a", 0, 5, "v") }],
        both_images,
    ] {
        let refused = check_space(&ranges, &["a"], &targets(&[("b", 100)]));
        assert!(matches!(refused, Err(Obstacle::Kind { .. })), "{ranges:?}: {refused:?}");
    }
}

#[test]
fn what_lvm_has_begun_to_move_comes_first() {
    let begun = |pv: &str, start| UsedRange {
        moved_from: Some("a".to_owned()),
        segment_type: "mirror".to_owned(),
        ..range(pv, start, 4, "pvmove0")
    };
    let ranges = [range("a", 0, 10, "v"), begun("a", 10), begun("b", 0)];
    let piece = next_piece(&ranges, "a", &targets(&[("b", 100)]), 1).unwrap().unwrap();
    assert_eq!(piece, Piece { volume: "pvmove0".to_owned(), start: 10, length: 4, target: None });
    assert_eq!(check_space(&ranges, &["a"], &targets(&[("b", 10)])), Ok(()));
    assert_eq!(begun_moves(&ranges).map(|range| range.pv.as_str()).collect::<Vec<_>>(), ["a"]);
}

#[test]
fn arrived_ranges_exclude_previous_ones_in_merged_segments() {
    let before = [range("b", 10, 5, "v"), range("b", 30, 2, "v"), range("b", 0, 4, "other"), range("a", 0, 9, "v")];
    let after = [range("b", 8, 14, "v"), range("b", 30, 2, "v"), range("b", 40, 1, "v"), range("c", 0, 3, "v")];
    assert_eq!(arrived(&before, &after, "v", "b"), [(8, 2), (15, 7), (40, 1)]);
    assert_eq!(arrived(&before, &before, "v", "b"), []);
    assert_eq!(arrived(&[], &after, "v", "c"), [(0, 3)]);
}
