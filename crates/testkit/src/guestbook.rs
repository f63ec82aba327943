//! The behaviour that every guestbook must have, with every architecture and every store.

use crate::http::{Client, Reply};
use std::thread;

/// Requests the guestbook page, which counts as a visit.
pub fn visit(client: &mut Client) -> Reply {
    client.get("/guestbook")
}

/// Posts a form to the guestbook.
pub fn post(client: &mut Client, form: &str) -> Reply {
    client.send(format!(
        "POST /guestbook HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\n\r\n{form}",
        form.len()
    ));
    client.reply_to("POST")
}

/// Returns the number of the visit that a page shows.
pub fn visitor(page: &Reply) -> u64 {
    let text = page.text();
    let number = text.split("visitor number ").nth(1).and_then(|rest| rest.split('.').next());
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no number in {text}"))
}

/// Checks a guestbook: visits it, posts a remark and finds the remark on the page. `connect` creates a
/// client, and the page at `/` is `index`. No other client may visit at the same time.
pub fn is_a_guestbook(connect: &dyn Fn() -> Client, index: &str) {
    let mut client = connect();
    let page = visit(&mut client);
    assert_eq!(page.status, 200, "{}", page.text());
    assert_eq!(page.field("cache-control"), Some("no-store"));
    assert_eq!(page.field("content-type"), Some("text/html; charset=utf-8"));
    let first = visitor(&page);
    let posted = post(&mut client, "guest-remarks=%3Cb%3Ehello%3C%2Fb%3E&guest-name=Ada");
    assert_eq!((posted.status, posted.field("location")), (303, Some("/guestbook")));
    // A server with one connection at a time can now serve the next connection, perhaps in another
    // process.
    drop(client);
    let mut client = connect();
    let page = visit(&mut client);
    assert_eq!(visitor(&page), first + 1);
    assert!(page.text().contains("&lt;b&gt;hello&lt;/b&gt; - Ada"), "{}", page.text());
    assert!(!page.text().contains("<b>hello"));
    // Pipelined requests are answered in order, whether their responses are ready at once or later.
    client.send(
        "GET /guestbook HTTP/1.1\r\nHost: t\r\n\r\nGET / HTTP/1.1\r\nHost: t\r\n\r\n\
         HEAD /guestbook HTTP/1.1\r\nHost: t\r\n\r\nGET / HTTP/1.1\r\nHost: t\r\n\r\n",
    );
    assert_eq!(visitor(&client.reply()), first + 2);
    assert_eq!(client.reply().text(), index);
    assert_eq!(client.reply_to("HEAD").status, 200);
    assert_eq!(client.reply().text(), index);
}

/// Runs `clients` clients at once, each with `each` visits on new connections, and checks that each
/// visit has its own number.
pub fn counts_each_visit_once(connect: &(dyn Fn() -> Client + Sync), clients: u64, each: u64) {
    let first = visitor(&visit(&mut connect()));
    let mut seen: Vec<u64> = thread::scope(|scope| {
        let visits = || (0..each).map(|_| visitor(&visit(&mut connect()))).collect::<Vec<_>>();
        let clients: Vec<_> = (0..clients).map(|_| scope.spawn(visits)).collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    seen.sort_unstable();
    assert_eq!(seen, (first + 1..=first + clients * each).collect::<Vec<_>>());
}
