use super::*;
use std::path::Path;
use std::process::Command;

#[test]
fn versions_are_read_from_names() {
    let minor = |path| version_in(path).map(|minor| minor.0);
    assert_eq!(minor("/usr/bin/python3.9"), Some(9));
    assert_eq!(minor("/opt/lib/libpython3.10.so.1.0"), Some(10));
    assert_eq!(minor("/usr/bin/python3.8 (deleted)"), Some(8));
    assert_eq!(minor("/usr/bin/python3"), None);
    assert_eq!(minor("/usr/bin/python3.9d"), None);
    assert_eq!(minor("/usr/lib/libpython3.13t.so.1.0"), None);
    assert_eq!(minor("/usr/lib/python3.11/lib-dynload/x.so"), None);
    assert_eq!(minor("/usr/lib/libpython3.so"), None);
}

/// A description in which each offset is a number of its own, for a release of this minor version.
fn description(minor: u64) -> Vec<u64> {
    let mut words: Vec<u64> = (0..DEBUG_WORDS).map(|i| 8 * i).collect();
    words[0] = u64::from_le_bytes(*b"xdebugpy");
    words[1] = 0x0300_00f0 | minor << 16;
    words[2] = 0;
    let sizes = if minor == 13 {
        [3, 6, 19, 28, 34, 71]
    } else {
        [3, 6, 22, 31, 39, 81]
    };
    for size in sizes {
        words[size] = 1 << 16;
    }
    words
}

fn layout(minor: u8, words: &[u64]) -> Option<types::gdiag_py_process> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    described(Minor(minor), &bytes)
}

#[test]
fn a_description_for_another_build_is_refused() {
    assert!(layout(13, &description(13)).is_some());
    assert!(layout(14, &description(14)).is_some());
    assert!(layout(13, &description(14)).is_none());
    let mut free_threaded = description(13);
    free_threaded[2] = 1;
    assert!(layout(13, &free_threaded).is_none());
    let mut no_cookie = description(13);
    no_cookie[0] += 1;
    assert!(layout(13, &no_cookie).is_none());
    let mut outside = description(13);
    outside[24] = 1 << 20;
    assert!(layout(13, &outside).is_none());
    assert!(described(Minor(13), b"xdebugpy").is_none());
}

#[test]
fn the_collector_is_where_the_description_says() {
    // The interpreter's `gc`, and `collecting` in that.
    for (minor, gc, collecting) in [(13, 10, 72), (14, 11, 82)] {
        let at = layout(minor, &description(minor.into())).unwrap().at;
        assert_eq!(at.gc_collecting, 8 * (gc + collecting));
    }
}

#[test]
fn pre_releases_are_refused() {
    assert!(is_release(0x030d_05f0));
    assert!(is_release(0x030e_00c2));
    assert!(!is_release(0x030e_00b1));
}

#[test]
fn what_is_read_at_once_has_every_field_and_no_more() {
    let spans = |minor| {
        let layout = measured(Minor(minor)).unwrap();
        [layout.frame, layout.code].map(|span| (span.first, span.size))
    };
    // From `previous` to an int, and from `first_line` to `lines`.
    assert_eq!(spans(8), [(24, 84), (40, 88)]);
    assert_eq!(spans(10), [(24, 76), (40, 88)]);
    // From `code` to a byte, the owner.
    assert_eq!(spans(11), [(32, 37), (72, 72)]);
    assert_eq!(spans(12), [(0, 71), (68, 76)]);
}

/// Check the table of offsets with the headers of each version that this machine has.
#[test]
fn offsets_are_those_of_the_headers() {
    let root = env!("CARGO_MANIFEST_DIR");
    let list = Command::new(format!("{root}/tests/stacks/pythons.sh"))
        .arg("list")
        .output()
        .expect("the script runs");
    let dir = tempfile::tempdir().expect("a temporary directory");
    for line in String::from_utf8_lossy(&list.stdout).lines() {
        let (version, command) = line.split_once(' ').expect("a version and a command");
        let minor = version_in(&format!("python{version}")).expect("a version");
        let Some(layout) = measured(minor) else {
            continue;
        };
        let include = "import sysconfig; print(sysconfig.get_paths()['include'])";
        let include = Command::new("sh")
            .args(["-c", &format!("{command} -c \"{include}\"")])
            .output()
            .expect("the interpreter runs");
        let include = String::from_utf8_lossy(&include.stdout).trim().to_owned();
        if !Path::new(&include)
            .join("internal/pycore_interp.h")
            .exists()
            && !Path::new(&include)
                .join("internal/pycore_pystate.h")
                .exists()
        {
            eprintln!("skipped: no headers for {command}");
            continue;
        }
        let program = dir.path().join(version);
        let compiled = Command::new("cc")
            .arg(format!("-I{include}"))
            .arg(format!("-I{include}/internal"))
            .arg(format!("{root}/tests/stacks/offsets.c"))
            .arg("-o")
            .arg(&program)
            .status()
            .expect("cc runs");
        assert!(compiled.success());
        let output = Command::new(&program).output().expect("it was just made");
        let ours = format!("{:?}", layout.at);
        let mut compared = 0;
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let (name, offset) = line.split_once(' ').expect("a name and a number");
            let field = |end| ours.contains(&format!(" {name}: {offset}{end}"));
            assert!(
                field(",") || field(" }"),
                "{version}: {line} is not in {ours}"
            );
            compared += 1;
        }
        assert!(compared > 20);
        eprintln!("{version}: {compared} offsets compared");
    }
}
