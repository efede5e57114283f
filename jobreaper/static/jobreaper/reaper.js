// Refreshes the parts of the Reaper page without losing place: what is unfolded stays so, the focus
// stays where it is, and a part in which text is selected waits for the next time.
(() => {
    "use strict";

    const start = () => {
        const parts = document.getElementById("jr-parts");
        const switching = document.getElementById("jr-refreshing");
        const trouble = document.getElementById("jr-trouble");
        if (!parts || !switching || !window.fetch) {
            return;
        }
        const box = switching.querySelector("input");
        switching.hidden = false;

        const isSelectedIn = (part) => {
            const selection = document.getSelection();
            return selection && !selection.isCollapsed && part.contains(selection.anchorNode);
        };

        const replace = (part, fresh) => {
            const unfolded = [...part.querySelectorAll("details[open]")].map((each) => each.id);
            const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
            const scrolled = [...part.querySelectorAll(".jr-scroll")].map((each) => each.scrollLeft);
            part.innerHTML = fresh.innerHTML;
            part.className = fresh.className;
            for (const each of part.querySelectorAll("details")) {
                each.open = unfolded.includes(each.id);
            }
            part.querySelectorAll(".jr-scroll").forEach((each, place) => {
                each.scrollLeft = scrolled[place] || 0;
            });
            const again = focused && document.getElementById(focused);
            if (again) {
                again.focus({ preventScroll: true });
            }
        };

        const show = (html) => {
            const fresh = new DOMParser().parseFromString(html, "text/html");
            const sections = [...fresh.body.children];
            const same = sections.length === parts.children.length &&
                sections.every((each, place) => each.id === parts.children[place].id);
            if (!same) {
                parts.replaceChildren(...sections);
                return;
            }
            sections.forEach((each, place) => {
                const part = parts.children[place];
                if (part.innerHTML !== each.innerHTML && !isSelectedIn(part)) {
                    replace(part, each);
                }
            });
        };

        const refresh = async () => {
            if (!box.checked || document.hidden) {
                return;
            }
            try {
                const answer = await fetch(parts.dataset.parts, { credentials: "same-origin" });
                // A page to sign in is no part of this one.
                if (!answer.ok || answer.headers.get("X-Jobreaper") !== "parts") {
                    throw new Error(String(answer.status));
                }
                show(await answer.text());
                trouble.hidden = true;
            } catch {
                trouble.hidden = false;
            }
        };

        const again = async () => {
            await refresh();
            setTimeout(again, parts.dataset.every * 1000);
        };
        setTimeout(again, parts.dataset.every * 1000);
        document.addEventListener("visibilitychange", refresh);
    };

    if (document.readyState === "loading") {
        document.addEventListener("DOMContentLoaded", start);
    } else {
        start();
    }
})();
