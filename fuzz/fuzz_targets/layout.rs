//! Options of `lvcreate` that an administrator wrote, and free areas of any shape: the largest volume fits and is no
//! larger than what is free. The first line is the options; each further line is a disk, its numbers the lengths of its
//! free areas.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lvm::Layout;

/// LVM has no more disks and areas than a person can make in a test; numbers of 32 bits are disks of 16 PiB.
const MOST: usize = 8;

fuzz_target!(|text: &str| {
    let mut lines = text.lines();
    let words: Vec<String> = lines.next().unwrap_or_default().split_whitespace().map(str::to_owned).collect();
    let layout = Layout::parse(&words, None);
    let disk = |line: &str| -> Vec<u64> {
        line.split_whitespace().filter_map(|word| word.parse::<u32>().ok()).map(u64::from).take(MOST).collect()
    };
    let free: Vec<Vec<u64>> = lines.take(MOST).map(disk).collect();
    let total: u64 = free.iter().flatten().sum();
    for extent_size in [4 << 10, 4 << 20] {
        let largest = layout.largest(extent_size, &free);
        assert!(largest <= total, "{layout}: {largest} of {total}");
        assert!(largest == 0 || layout.fits(largest, extent_size, &free), "{layout}: {largest} do not fit in {free:?}");
        assert!(matches!(layout, Layout::Unknown { .. }) || !layout.fits(total + 1, extent_size, &free));
        assert_eq!(largest % layout.step(), 0, "{layout}");
    }
});
