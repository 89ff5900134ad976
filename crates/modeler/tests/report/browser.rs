//! Headless Chromium, which opens a page wide and narrow, light and dark, and looks for what no test of the
//! text can see: what does not fit, what cannot be read, and what loads something.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

/// Opens the page `NAME.html` of this directory in every way, and leaves the pictures beside it.
pub(crate) fn check_page(browser: &mut Browser, place: &Path, name: &str) {
    let path = place.join(format!("{name}.html"));
    for width in [1280, 390] {
        for scheme in ["light", "dark"] {
            let picture = browser.check(&View { path: &path, width, scheme });
            let file = place.join(format!("{name}-{width}-{scheme}.png"));
            fs::write(&file, picture).expect("written");
        }
    }
}

/// How a page is opened.
#[derive(Debug)]
struct View<'a> {
    path: &'a Path,
    width: u32,
    scheme: &'static str,
}

/// Chromium, spoken to by its DevTools protocol over two pipes: messages of JSON,
/// each ended by a zero byte.
pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    last_id: u64,
    /// What it told of its own accord.
    events: VecDeque<Value>,
    _profile: tempfile::TempDir,
}

/// A page of the browser.
struct Tab {
    target: Value,
    session: Value,
}

impl Browser {
    pub(crate) fn start(program: &Path) -> Self {
        let profile = tempfile::tempdir().expect("a directory");
        // Chromium wants the pipes as descriptors 3 and 4.
        let mut child = Command::new("sh")
            .args(["-c", r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1"#])
            .arg(program)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
            .args(["--no-first-run", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let to = child.stdin.take().expect("a pipe");
        let from = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, to, from, last_id: 0, events: VecDeque::new(), _profile: profile }
    }

    /// Opens the page, looks at it, and returns a screenshot of all of it.
    fn check(&mut self, view: &View<'_>) -> Vec<u8> {
        let tab = self.open_tab();
        for domain in ["Page", "Network", "Log", "Runtime"] {
            self.call(Some(&tab), &format!("{domain}.enable"), json!({}));
        }
        let size =
            json!({"width": view.width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.call(Some(&tab), "Emulation.setDeviceMetricsOverride", size);
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": view.scheme}]});
        self.call(Some(&tab), "Emulation.setEmulatedMedia", media);
        self.events.clear();
        let address = format!("file://{}", view.path.display());
        self.call(Some(&tab), "Page.navigate", json!({"url": address}));
        self.wait_for("Page.loadEventFired");
        self.assert_fits(&tab, view);
        self.assert_contrast(&tab, view);
        let picture = self.screenshot(&tab);
        self.assert_not_blank(&picture, view);
        // Last: what went wrong in between has been told by now.
        self.assert_silent(&address, view);
        self.close(&tab);
        picture
    }

    fn assert_fits(&mut self, tab: &Tab, view: &View<'_>) {
        let wide = self.evaluate(tab, WIDER_THAN_THE_PAGE);
        assert_eq!(wide, json!([]), "{view:?}: wider than the page");
    }

    /// WCAG 2.1, 1.4.3: text has at least 4.5 : 1, large text 3 : 1.
    fn assert_contrast(&mut self, tab: &Tab, view: &View<'_>) {
        let found = self.evaluate(tab, CONTRAST);
        assert!(found["seen"].as_u64() > Some(100), "{view:?}: {found}");
        assert_eq!(found["faint"], json!([]), "{view:?}: too little contrast");
    }

    fn screenshot(&mut self, tab: &Tab) -> Vec<u8> {
        let metrics = self.call(Some(tab), "Page.getLayoutMetrics", json!({}));
        let size = &metrics["cssContentSize"];
        let height = size["height"].as_f64().expect("a height").min(HIGHEST_PICTURE);
        let clip = json!({"x": 0, "y": 0, "width": size["width"], "height": height, "scale": 1});
        let ask = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let answer = self.call(Some(tab), "Page.captureScreenshot", ask);
        BASE64_STANDARD.decode(answer["data"].as_str().expect("a picture")).expect("base64")
    }

    /// The browser itself counts the colours of the picture.
    fn assert_not_blank(&mut self, picture: &[u8], view: &View<'_>) {
        let tab = self.open_tab();
        let script = COLOURS.replace("PICTURE", &BASE64_STANDARD.encode(picture));
        let seen = self.evaluate(&tab, &script);
        self.close(&tab);
        assert!(seen["colours"].as_u64() > Some(50), "{view:?}: {seen}");
        let lightness = seen["lightness"].as_f64().expect("a number");
        assert_eq!(lightness > 0.5, view.scheme == "light", "{view:?}: lightness {lightness}");
    }

    /// No console message, no error, and no request but that for the page.
    fn assert_silent(&mut self, address: &str, view: &View<'_>) {
        let complaints = ["Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"];
        for event in self.events.drain(..) {
            let what = event["method"].as_str().unwrap_or_default();
            assert!(!complaints.contains(&what), "{view:?}: {event}");
            if what == "Network.requestWillBeSent" {
                let url = event["params"]["request"]["url"].as_str().unwrap_or_default();
                assert!(url == address || url.starts_with("data:"), "{view:?}: {event}");
            }
        }
    }

    fn open_tab(&mut self) -> Tab {
        let target = self.call(None, "Target.createTarget", json!({"url": "about:blank"}));
        let target = target["targetId"].clone();
        let ask = json!({"targetId": target, "flatten": true});
        let session = self.call(None, "Target.attachToTarget", ask)["sessionId"].clone();
        Tab { target, session }
    }

    fn close(&mut self, tab: &Tab) {
        self.call(None, "Target.closeTarget", json!({"targetId": tab.target}));
    }

    fn evaluate(&mut self, tab: &Tab, script: &str) -> Value {
        let ask = json!({"expression": script, "returnByValue": true, "awaitPromise": true});
        let answer = self.call(Some(tab), "Runtime.evaluate", ask);
        assert!(answer["exceptionDetails"].is_null(), "{answer}");
        answer["result"]["value"].clone()
    }

    /// Asks a page, or the browser, and waits for the answer.
    fn call(&mut self, tab: Option<&Tab>, method: &str, params: Value) -> Value {
        self.last_id += 1;
        let mut message = json!({"id": self.last_id, "method": method, "params": params});
        if let Some(tab) = tab {
            message["sessionId"] = tab.session.clone();
        }
        let mut bytes = serde_json::to_vec(&message).expect("JSON");
        bytes.push(0);
        self.to.write_all(&bytes).expect("Chromium listens");
        loop {
            let mut answer = self.next();
            if answer["id"] == self.last_id {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].take();
            }
            self.events.push_back(answer);
        }
    }

    fn wait_for(&mut self, method: &str) {
        while !self.events.iter().any(|event| event["method"] == method) {
            let event = self.next();
            self.events.push_back(event);
        }
    }

    fn next(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes).expect("Chromium answers");
        assert_eq!(bytes.pop(), Some(0), "Chromium has ended");
        serde_json::from_slice(&bytes).expect("JSON")
    }
}

impl Drop for Browser {
    /// Its processes end with it only if it ends by itself.
    fn drop(&mut self) {
        let _ = self.to.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        for _ in 0..50 {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        // It does not end: neither of these can fail then.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where it is. None, with a printed line, if it is not.
pub(crate) fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let places = PROGRAMS.iter().flat_map(|name| directories.iter().map(move |d| d.join(name)));
    let found = places.into_iter().find(|place| place.is_file());
    if found.is_none() {
        println!("skipped: none of {} is in PATH", PROGRAMS.join(", "));
    }
    found
}

const PROGRAMS: [&str; 4] =
    ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// Chromium draws no more than this in one picture.
const HIGHEST_PICTURE: f64 = 16_000.0;

/// Elements that reach beyond the right edge, except within what scrolls by itself.
const WIDER_THAN_THE_PAGE: &str = r#"(() => {
    const edge = document.documentElement.clientWidth;
    const scrolls = (element) => {
        for (let e = element.parentElement; e; e = e.parentElement)
            if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(e).overflowX)) return true;
        return false;
    };
    const wide = [...document.querySelectorAll('body *')]
        .filter((e) => e.getBoundingClientRect().right > edge + 1 && !scrolls(e))
        .map((e) => `${e.tagName}.${e.getAttribute('class')}: ${e.textContent.slice(0, 40)}`);
    if (document.documentElement.scrollWidth > edge) wide.push(`page: ${document.documentElement.scrollWidth}`);
    return wide;
})()"#;

/// Text whose colour is too close to what is behind it.
const CONTRAST: &str = r#"(() => {
    const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const channels = (colour) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const luminance = (rgb) => {
        const [r, g, b] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (element) => {
        for (let e = element; e; e = e.parentElement) {
            const [r, g, b, a] = channels(getComputedStyle(e).backgroundColor);
            if (a === 255) return [r, g, b];
        }
        return [255, 255, 255];
    };
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const faint = new Set();
    let seen = 0;
    while (texts.nextNode()) {
        const element = texts.currentNode.parentElement;
        if (!texts.currentNode.data.trim() || element.closest('title, style, .unseen') || !element.checkVisibility()) continue;
        const style = getComputedStyle(element);
        const svg = element instanceof SVGElement;
        const [a, b] = [channels(svg ? style.fill : style.color).slice(0, 3), behind(element)].map(luminance);
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        const size = parseFloat(style.fontSize);
        const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
        seen += 1;
        if (ratio < (large ? 3 : 4.5)) faint.add(`${element.tagName}.${element.getAttribute('class')} ${ratio.toFixed(2)}`);
    }
    return {seen, faint: [...faint]};
})()"#;

/// Colours of a picture and its mean lightness.
const COLOURS: &str = r#"(async () => {
    const image = new Image();
    image.src = 'data:image/png;base64,PICTURE';
    await image.decode();
    const canvas = document.createElement('canvas');
    [canvas.width, canvas.height] = [image.width, Math.min(image.height, 4000)];
    const context = canvas.getContext('2d');
    context.drawImage(image, 0, 0);
    const data = context.getImageData(0, 0, canvas.width, canvas.height).data;
    const colours = new Set();
    let sum = 0;
    for (let i = 0; i < data.length; i += 4) {
        colours.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
        sum += data[i] + data[i + 1] + data[i + 2];
    }
    return {colours: colours.size, lightness: sum / (data.length / 4) / 765};
})()"#;
